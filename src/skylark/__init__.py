"""SkylarkMQ: a message broker in Python that RocketMQ clients can use unchanged.

    async with skylark.connect("127.0.0.1:9876") as mq:
        async with mq.producer("orders") as producer:
            receipt = await producer.send(skylark.Message("OrderTopic", b"...", tag="Paid"))

The names below are loaded when they are first used, so that importing a server or a tool does not
load a client.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from .client.connect import connect as connect
    from .client.facade import Client as Client
    from .client.producer import Producer as Producer
    from .client.producer import ProducerConfig as ProducerConfig
    from .client.producer import SendCallback as SendCallback
    from .client.receipts import SendReceipt as SendReceipt
    from .errors import SkylarkError as SkylarkError
    from .model.message import Message as Message
    from .model.message import StoredMessage as StoredMessage
    from .model.queue import MessageQueue as MessageQueue
    from .remote import SendStatus as SendStatus

_HOMES = {
    "connect": "skylark.client.connect",
    "Client": "skylark.client.facade",
    "Producer": "skylark.client.producer",
    "ProducerConfig": "skylark.client.producer",
    "SendCallback": "skylark.client.producer",
    "SendReceipt": "skylark.client.receipts",
    "SendStatus": "skylark.remote",
    "SkylarkError": "skylark.errors",
    "Message": "skylark.model.message",
    "StoredMessage": "skylark.model.message",
    "MessageQueue": "skylark.model.queue",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'skylark' has no attribute {name!r}")
    found = getattr(importlib.import_module(home), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
