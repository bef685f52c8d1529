"""RaftMembers: who belongs to a Raft group, as dLegerPeers says it.

    dLegerPeers     n0-host:port;n1-host:port;n2-host:port     the same at every member
    dLegerSelfId    n0                                         which of them this broker is

An id is a letter and a number, as RocketMQ has it. The number is what counts: a follower registers
with it plus one, since 0 is the leader's. Ports are for the group alone, not for clients.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..errors import ConfigError

MEMBERS_MAX = 15
_ID = re.compile(r"[A-Za-z]([0-9]{1,4})")
_EXAMPLE = "dLegerPeers=n0-host:port;n1-host:port;n2-host:port"


@dataclass(frozen=True, slots=True)
class RaftMember:
    """One of them."""

    name: str
    number: int
    address: str

    @property
    def port(self) -> int:
        """The port that the others connect to."""
        return int(self.address.rpartition(":")[2])


def read_members(text: str) -> tuple[RaftMember, ...]:
    """Read dLegerPeers; raises ConfigError."""
    members: list[RaftMember] = []
    for word in text.replace(",", ";").split(";"):
        if word.strip():
            members.append(_read_member(word.strip()))
    if not members:
        raise ConfigError(
            f"enableDLegerCommitLog=true needs dLegerPeers: set {_EXAMPLE}, the same at every "
            "member"
        )
    if len(members) > MEMBERS_MAX:
        raise ConfigError(f"dLegerPeers names {len(members)} members; {MEMBERS_MAX} are the limit")
    for what, seen in (
        ("the number", [str(member.number) for member in members]),
        ("the address", [member.address for member in members]),
    ):
        for one in seen:
            if seen.count(one) > 1:
                raise ConfigError(
                    f"dLegerPeers: two members have {what} {one}; give each its own, as in "
                    f"{_EXAMPLE}"
                )
    return tuple(members)


def _read_member(word: str) -> RaftMember:
    name, dash, address = word.partition("-")
    found = _ID.fullmatch(name)
    host, colon, port = address.rpartition(":")
    if not dash or found is None or not colon or not host or not _is_port(port):
        raise ConfigError(f"dLegerPeers: {word[:80]!r} is not id-host:port; write {_EXAMPLE}")
    return RaftMember(name, int(found[1]), address)


def find_member(members: tuple[RaftMember, ...], name: str, key: str) -> RaftMember:
    """The member that a setting names; raises ConfigError where there is none."""
    for member in members:
        if member.name == name:
            return member
    names = ", ".join(member.name for member in members)
    given = f"{key}={name}" if name else f"{key} is not set"
    raise ConfigError(f"{given}: set it to one of the ids in dLegerPeers ({names})")


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 5 and 0 < int(text) <= 65_535
