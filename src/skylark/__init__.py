"""SkylarkMQ: a message broker in Python that RocketMQ clients can use unchanged."""

__version__ = "0.1.0"
