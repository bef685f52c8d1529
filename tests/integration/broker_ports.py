"""Ports for broker processes: each takes its own, the one two below and, for replicas, the next."""

from __future__ import annotations

import random
import socket

# Below the kernel's range for outgoing connections: any client may take a port of that range
# between our look and the broker's start, or while the broker is away.
_PORTS = range(12_000, 32_000)
_STEPS = (-2, 0, 1)


def free_port() -> int:
    """A port that nothing listens on, nor on its neighbours."""
    chance = random.SystemRandom()  # Two runs at once must not choose alike.
    for _ in range(1000):
        port = chance.choice(_PORTS)
        if all(_is_free(port + step) for step in _STEPS):
            return port
    raise AssertionError("no free ports")


def _is_free(port: int) -> bool:
    with socket.socket() as one:
        try:
            one.bind(("", port))
        except OSError:
            return False
        return True
