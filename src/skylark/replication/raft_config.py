"""RaftConfig: who a group is, and how patient."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ..errors import ConfigError

HEARTBEAT_TICKS: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftConfig:
    """Who the group is, and how patient; raises ConfigError where that makes no sense."""

    group: str  # dLegerGroup
    self_id: str  # dLegerSelfId, such as n0
    peers: Mapping[str, tuple[str, int]]  # dLegerPeers, this member included: id → host, port
    listen_host: str = ""  # Where to listen; empty: all addresses. The port is that of self_id.
    heartbeat_ms: int = 200
    election_ms: int = 1_500  # Silence of a leader after which others may take over.
    key: bytes | None = None  # The cluster key, which all members prove to each other.
    silence_ms: int = 3_000  # A connection without a sign of life for this long is made anew.
    diverged_bytes_max: int = 1 << 30  # Longer tails are not given up without an operator.

    def __post_init__(self) -> None:
        if not self.group or "\n" in self.group:
            raise ConfigError(f"dLegerGroup: {self.group!r} is not a name")
        for name in self.peers:
            if not name or any(mark in name for mark in "\n;"):
                raise ConfigError(f"dLegerPeers: {name!r} is not an id such as n0")
        if self.self_id not in self.peers:
            raise ConfigError(
                f"dLegerSelfId: {self.self_id!r} is not among the ids of dLegerPeers, which are "
                f"{', '.join(sorted(self.peers))}"
            )
        if len(set(self.peers.values())) < len(self.peers):
            raise ConfigError("dLegerPeers: two members have the same address")
        if not 10 <= self.heartbeat_ms <= self.election_ms // 3:
            raise ConfigError(
                f"a heartbeat every {self.heartbeat_ms} ms and elections after {self.election_ms} "
                "ms: at least 10 ms, and three of them to an election"
            )

    @property
    def tick_ms(self) -> int:
        """How long a tick is."""
        return max(5, self.heartbeat_ms // HEARTBEAT_TICKS)
