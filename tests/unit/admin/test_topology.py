"""What is unsafe in a cluster, and what forbids a restart; judged without asking anybody."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from skylark.admin import BrokerGroup, ClusterStatus, MemberStatus, NameServerStatus, RaftFigures
from skylark.admin.growth import without_broker
from skylark.admin.rolling import in_order, restart_obstacles
from skylark.admin.topology import find_problems, name_some
from skylark.errors import NoRoute
from skylark.model.route import BrokerData, ClusterInfo
from skylark.model.topic import TopicConfig

MASTER = MemberStatus(
    broker="a", broker_id=0, address="a0:1", role="SYNC_MASTER", permission=6, log_end=100
)
REPLICA = MemberStatus(
    broker="a", broker_id=1, address="a1:1", role="SLAVE", permission=6, log_end=100, lag_bytes=0,
    is_following=True,
)  # fmt: skip
ALONE = MemberStatus(broker="b", broker_id=0, address="b0:1", role="ASYNC_MASTER", permission=6)
TOPICS = {
    "T": TopicConfig("T"),
    "%RETRY%g": TopicConfig("%RETRY%g"),
    "TBW102": TopicConfig("TBW102"),
}
GONE = {"is_reachable": False, "trouble": "refused"}


def group(*members: MemberStatus, **changes: Any) -> BrokerGroup:
    given = {"topics": TOPICS, **changes}
    return BrokerGroup(cluster="c", name=members[0].broker, members=members, **given)


def judged(*groups: BrokerGroup, servers: int = 2) -> ClusterStatus:
    """A status whose name servers all know everybody."""
    info = ClusterInfo(
        brokers={
            one.name: BrokerData("c", one.name, {m.broker_id: m.address for m in one.members})
            for one in groups
        }
    )
    known = tuple(NameServerStatus(f"ns{number}:9876", info) for number in range(servers))
    return ClusterStatus(groups, known, tuple(find_problems(groups, known)))


def raft(broker_id: int, **items: str) -> MemberStatus:
    figures = {"raftLeader": "n0", "raftMembers": "n0=x at 1, n1=y at 1, n2=z at 1", **items}
    return MemberStatus(
        broker="r", broker_id=broker_id, address=f"r{broker_id}:1", permission=6, log_end=9,
        lag_bytes=None if broker_id == 0 else 0, raft=RaftFigures(figures),
    )  # fmt: skip


RAFT = (raft(0), raft(1), raft(2))


@pytest.mark.parametrize(
    ("groups", "said"),
    [
        ([group(MASTER, REPLICA), group(ALONE)], []),
        ([group(MASTER), group(ALONE)], ["no replica of a is in sync"]),
        ([group(MASTER, replace(REPLICA, lag_bytes=2 << 20))],
         ["no replica of a is in sync, the nearest is 2097152 bytes behind"]),
        ([group(MASTER, replace(REPLICA, is_following=False, trouble="epoch 3 is older"))],
         ["replica a1:1 of a does not follow its master: epoch 3 is older",
          "no replica of a is in sync"]),
        ([group(MASTER, replace(REPLICA, **GONE))],
         ["a at a1:1 does not answer: refused", "no replica of a is in sync"]),
        ([group(REPLICA)],
         ["a has no master: nobody can send to it", "nobody takes messages for T"]),
        ([group(replace(ALONE, disk_used_ratio=0.9))], ["the disk of b at b0:1 is 90% full"]),
        ([group(replace(ALONE, permission=4))], ["nobody takes messages for T"]),
        ([group(ALONE, wiped_at=("ns0:9876",))], ["nobody takes messages for T"]),
        ([group(replace(ALONE, permission=4)), group(MASTER, REPLICA)], []),
        ([group(*RAFT)], []),
        ([group(*RAFT[:2])], ["r has 2 of 3 members: one less, and it takes no writes"]),
        ([group(raft(0, raftLeader=""))],
         ["r has 1 of 3 members and needs 2: it takes no writes", "r has no leader"]),
        ([group(*RAFT[:2], raft(2, raftMayVote="false"))],
         ["r2:1 of r may not vote: it lost its log"]),
        ([group(*RAFT[:2], raft(2, raftProblem="disk full"))], ["r2:1 of r: disk full"]),
    ],
)  # fmt: skip
def test_what_is_unsafe_is_said(groups: list[BrokerGroup], said: list[str]) -> None:
    status = judged(*groups)
    assert [problem.what for problem in status.problems] == said
    assert status.is_safe == (not said)
    assert all(problem.next_step for problem in status.problems)


def test_name_servers_that_are_away_or_know_less_are_said() -> None:
    whole = group(ALONE)
    servers = (NameServerStatus("ns0:1", None, "refused"), NameServerStatus("ns1:1", ClusterInfo()))
    assert [problem.what for problem in find_problems([whole], servers)] == [
        "name server ns0:1 does not answer: refused",
        "name server ns1:1 does not know b0:1",
    ]


LAST = "a is the last broker that takes messages for T"


@pytest.mark.parametrize(
    ("groups", "at", "said"),
    [
        ([group(MASTER, REPLICA), group(ALONE)], (0, 0), []),
        ([group(MASTER, REPLICA), group(ALONE)], (0, 1), []),
        ([group(MASTER, REPLICA), group(ALONE)], (1, 0), []),
        ([group(MASTER, REPLICA)], (0, 0), [LAST]),
        # Without its replica a SYNC_MASTER answers that nobody has a copy.
        ([group(MASTER, REPLICA)], (0, 1), [LAST]),
        ([group(replace(MASTER, role="ASYNC_MASTER"), REPLICA)], (0, 1), []),
        ([group(MASTER, REPLICA, replace(REPLICA, broker_id=2, address="a2:1"))], (0, 1), []),
        ([group(MASTER), group(ALONE)], (0, 0), ["no replica of a is in sync"]),
        ([group(MASTER, replace(REPLICA, lag_bytes=2 << 20)), group(ALONE)], (0, 0),
         ["a1:1 of the same group is still catching up", "no replica of a is in sync"]),
        ([group(MASTER, replace(REPLICA, lag_bytes=2 << 20)), group(ALONE)], (0, 1),
         ["it is still catching up"]),
        ([group(replace(ALONE, **GONE)), group(MASTER, REPLICA)], (0, 0),
         ["it does not answer: refused"]),
        ([group(replace(ALONE, disk_used_ratio=0.86)), group(MASTER, REPLICA)], (0, 0),
         ["its disk is 86% full, and a start writes"]),
        # It takes no writes anyway, so nobody misses it.
        ([group(replace(ALONE, permission=4))], (0, 0), []),
        ([group(*RAFT)], (0, 0), []),
        ([group(*RAFT)], (0, 2), []),
        ([group(*RAFT[:2])], (0, 1), ["without it r has 1 members, and needs 2 to take writes"]),
        ([group(*RAFT[:2], raft(2, raftMayVote="false"))], (0, 1),
         ["without it r has 1 members, and needs 2 to take writes"]),
    ],
)  # fmt: skip
def test_what_forbids_a_restart_is_said(
    groups: list[BrokerGroup], at: tuple[int, int], said: list[str]
) -> None:
    status = judged(*groups)
    one = status.groups[at[0]]
    found = restart_obstacles(status, one, one.members[at[1]])
    assert [obstacle.what for obstacle in found] == said


def test_force_lets_topics_stand_still_and_nothing_else() -> None:
    status = judged(group(MASTER, REPLICA))
    one = status.groups[0]
    assert not list(restart_obstacles(status, one, MASTER, force=True))
    lagging = judged(group(MASTER, replace(REPLICA, lag_bytes=2 << 20)))
    assert list(restart_obstacles(lagging, lagging.groups[0], MASTER, force=True))


def test_replicas_go_before_their_master() -> None:
    assert [member.broker_id for member in in_order(group(*RAFT))] == [2, 1, 0]


def test_system_retry_and_dead_letter_topics_are_nobodys_last() -> None:
    assert judged(group(ALONE)).last_writable("b") == ["T"]
    assert judged(group(ALONE), group(MASTER, REPLICA)).last_writable("b") == []
    read_only = {"T": TopicConfig("T", perm=4)}
    assert judged(group(ALONE, topics=read_only)).last_writable("b") == []
    with pytest.raises(NoRoute, match="brokers: b"):
        judged(group(ALONE)).group("x")


def test_many_names_are_some_and_a_number() -> None:
    assert name_some("abc") == "a, b, c"
    assert name_some("abcdefgh") == "a, b, c, d, e and 3 more"


def test_a_broker_is_taken_out_of_an_order() -> None:
    assert without_broker("a:4;b:8; c:1;", "b") == "a:4;c:1"
    assert without_broker("b:8", "b") == ""


def test_figures_of_raft_are_words_for_people() -> None:
    figures = RaftFigures({"raftLogEnd": "7", "raftTerm": "3", "other": "x", "raftProblem-n1": "y"})
    assert figures.shown() == {"log end": "7", "term": "3", "problem-n1": "y"}
    assert (figures.term, RaftFigures().term, bool(RaftFigures({"a": "b"}))) == (3, None, False)
