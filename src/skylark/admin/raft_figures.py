"""RaftFigures: what a member of a Raft group says of itself, under keys that begin with "raft".

    key           means
    raftRole      leader, follower, candidate …
    raftTerm      the term it is in
    raftLeader    whom it takes for the leader; empty while there is none
    raftMembers   all members of the group, joined by commas
    raftMayVote   false for one that lost its disk, until it has its log again
    raftProblem   what keeps it from its work

Any other key is shown as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

PREFIX: Final = "raft"
_WORD: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


class RaftFigures:
    """The figures of one member; false where it is not part of a Raft group."""

    def __init__(self, runtime: Mapping[str, str] | None = None) -> None:
        table = {} if runtime is None else runtime
        self.items: dict[str, str] = {
            key: table[key] for key in sorted(table) if key.startswith(PREFIX)
        }

    def __bool__(self) -> bool:
        return bool(self.items)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RaftFigures) and self.items == other.items

    __hash__ = None  # type: ignore[assignment]  # It holds a dict.

    def __repr__(self) -> str:
        return f"RaftFigures({self.items})"

    @property
    def term(self) -> int | None:
        """The term that it is in."""
        text = self.items.get("raftTerm", "")
        return int(text) if text.isascii() and text.isdigit() else None

    @property
    def leader(self) -> str:
        """Whom it takes for the leader."""
        return self.items.get("raftLeader", "")

    @property
    def member_count(self) -> int:
        """How many members the group has, whether they are there or not; 0 where it is not said."""
        return len([name for name in self.items.get("raftMembers", "").split(",") if name.strip()])

    @property
    def may_vote(self) -> bool:
        """Whether it counts for a majority."""
        return self.items.get("raftMayVote") != "false"

    def shown(self) -> dict[str, str]:
        """All figures under words that people read: `commit index` for raftCommitIndex."""
        return {
            _WORD.sub(" ", key.removeprefix(PREFIX)).strip().lower(): value
            for key, value in self.items.items()
        }

    @staticmethod
    def majority(members: Iterable[RaftFigures], at_least: int) -> int:
        """How many members must be there; at_least are known by name."""
        return max([at_least, *(member.member_count for member in members)]) // 2 + 1

    @staticmethod
    def problems(broker: str, members: Mapping[str, RaftFigures]) -> Iterable[tuple[str, str]]:
        """What is unsafe in a group, and the next step; members are those that answer."""
        if not members:
            return
        total = max([len(members), *(member.member_count for member in members.values())])
        majority = total // 2 + 1
        if len(members) < majority:
            yield (
                f"{broker} has {len(members)} of {total} members and needs {majority}: "
                "it takes no writes",
                "start the others",
            )
        elif len(members) < total and len(members) == majority:
            yield (
                f"{broker} has {len(members)} of {total} members: one less, and it takes no writes",
                "start the others before anything is stopped",
            )
        for address, member in members.items():
            if not member.may_vote:
                yield (
                    f"{address} of {broker} may not vote: it lost its log",
                    "wait until it has it again; until then it counts for nothing",
                )
            if problem := member.items.get("raftProblem"):
                yield f"{address} of {broker}: {problem}", "see its log"
        if not any(member.leader for member in members.values()) and any(
            "raftLeader" in member.items for member in members.values()
        ):
            yield f"{broker} has no leader", "wait for an election; see the log if it stays so"
