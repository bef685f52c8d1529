"""ClientIdentity: how brokers know a client, and the ids of what it sends.

A client id is <ip>@<instance name>[@<unit>]; the default instance name becomes <pid>#<nanoseconds>,
so that no two clients are alike. Unique ids begin with address, process and a mark drawn at random.
A process that is forked has its parent's memory: it gets a generator of its own with the first id
it asks for, so whoever needs one asks here every time.
"""

from __future__ import annotations

import os
import random

from ..clock import Clock
from ..protocol.message_id import UniqueIdGenerator
from .config import DEFAULT_INSTANCE_NAME, ClientConfig


class _Forks:
    """How often this process has been forked off since the program began."""

    count = 0

    @classmethod
    def happened(cls) -> None:
        cls.count += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_Forks.happened)


class ClientIdentity:
    """Who a client is."""

    def __init__(
        self, config: ClientConfig, clock: Clock, rng: random.Random, pid: int | None
    ) -> None:
        self._config = config
        self._clock = clock
        self._rng = rng
        self._pid = os.getpid() if pid is None else pid
        self.set_ip(config.client_ip or "127.0.0.1")

    def set_ip(self, client_ip: str) -> None:
        """Take an address; ids that were given out before stay what they are."""
        name = self._config.instance_name
        if name == DEFAULT_INSTANCE_NAME:
            nano = self._clock.monotonic_ms() * 1_000_000 + self._rng.randrange(1_000_000)
            name = f"{self._pid}#{nano}"
        unit = f"@{self._config.unit_name}" if self._config.unit_name else ""
        self.client_ip = client_ip
        self.client_id = f"{client_ip}@{name}{unit}"
        self._make_ids(self._rng.getrandbits(32))

    @property
    def unique_ids(self) -> UniqueIdGenerator:
        """Gives ids that no other process gives."""
        if self._forks != _Forks.count:
            self._pid = os.getpid()
            # Brothers have the same random numbers before them, and different process ids.
            self._make_ids(self._rng.getrandbits(32) ^ self._pid)
        return self._unique_ids

    def _make_ids(self, mark: int) -> None:
        self._forks = _Forks.count
        self._unique_ids = UniqueIdGenerator(
            self._clock, ip=self.client_ip, pid=self._pid, process_mark=mark
        )
