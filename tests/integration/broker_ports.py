"""Ports for broker processes: each takes its own, the one two below and, for replicas, the next."""

from __future__ import annotations

import os
import random
import socket

# Below the kernel's range for outgoing connections: any client may take a port of that range
# between our look and the broker's start, or while the broker is away.
_PORTS = range(12_000, 32_000)
_SHARES = 10  # Workers that run beside each other have a share each.
_STEPS = (-2, -1, 0, 1)
_given: set[int] = set()


def free_port() -> int:
    """A port that nothing listens on, nor on its neighbours, given out once in this process."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    size = len(_PORTS) // _SHARES
    share = _PORTS[worker % _SHARES * size :][2 : size - 1]
    chance = random.SystemRandom()  # Two runs at once must not choose alike.
    for _ in range(1000):
        port = chance.choice(share)
        wanted = {port + step for step in _STEPS}
        if _given.isdisjoint(wanted) and all(map(_is_free, wanted)):
            _given.update(wanted)
            return port
    raise AssertionError("no free ports")


def _is_free(port: int) -> bool:
    with socket.socket() as one:
        try:
            one.bind(("", port))
        except OSError:
            return False
        return True
