"""What comes to the Raft port and is not a member: closed, counted, named; no term changes."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from raft_group_world import PORT, GroupWorld

from skylark.replication.raft_group import RaftConfig, RaftGroup
from skylark.replication.raft_log import Chunk, Kind, Message
from skylark.replication.raft_wire import (
    FRAME_BYTES_MAX,
    PROOF_BYTES,
    Hello,
    connectors_proof,
    encode_message,
    take_welcome,
)

KEY = b"secret"
MEMBERS = ("n0", "n1", "n2")
HELLO = Hello(b"x" * 16, True, "g", "n1", "n0", MEMBERS)
VOTE = Message(Kind.VOTE, "n1", "n0", 99, 1 << 40, 99, is_transfer=True)

DAMAGED = b"".join(
    encode_message(
        Message(Kind.APPEND, "n1", "n0", 99, 0, 0, Chunk(0, 240, 99, b"not a record" * 20))
    )
)


class Stranger(asyncio.Protocol):
    """Says something, and keeps what it is told."""

    def __init__(self, first: bytes = b"") -> None:
        self.first = first
        self.heard = bytearray()
        self.is_closed = False
        self.transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        transport.write(self.first)

    def data_received(self, data: bytes) -> None:
        self.heard += data

    def connection_lost(self, error: Exception | None) -> None:
        self.is_closed = True


async def visit(world: GroupWorld, first: bytes, wait_ms: int = 2_500) -> Stranger:
    """Connect to n0 from elsewhere, and stay until it hangs up, or for a while."""
    stranger = Stranger(first)
    await world.app.connect(lambda: stranger, world.nodes["n0"].address, PORT)
    clock = world.cluster.clock
    for _ in range(wait_ms // 20):
        if stranger.is_closed:
            break
        await clock.sleep_ms(20)
    return stranger


def among_strangers(scenario: Callable[[GroupWorld], Any], key: bytes | None = KEY) -> None:
    """Whatever they do, the group goes on in its term, and nothing agreed is harmed."""

    async def story(world: GroupWorld) -> None:
        await world.wait_serving()
        terms = {name: group.term for name, group in world.groups.items()}
        await scenario(world)
        assert {name: group.term for name, group in world.groups.items()} == terms
        before = len(world.acked)
        await world.cluster.clock.sleep_ms(1_000)
        assert len(world.acked) > before
        await world.wait_level()
        world.check_nothing_lost()

    with GroupWorld(3, key=key) as world:
        world.run(story)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (bytes(range(255)) * 4, "does not greet as a member"),
        (b"\0\0\0\0\0\0\0\x10" * 2, "does not greet as a member"),
        (b"GET / HTTP/1.1\r\n\r\n", "does not greet as a member"),
        (b"SKYRFT", "it does not greet"),
        (HELLO._replace(group="other").encode(), "it is of group 'other'"),
        (HELLO._replace(members=("n0", "n1")).encode(), "its members are n0;n1, ours n0;n1;n2"),
        (HELLO._replace(source="n9").encode(), "says that it is member 'n9'"),
        (HELLO._replace(source="n0").encode(), "says that it is member 'n0'"),
        (HELLO._replace(target="n2").encode(), "it wants member 'n2', this is 'n0'"),
        (HELLO._replace(has_key=False).encode(), "one of both has a cluster key"),
        (HELLO.encode() + bytes(PROOF_BYTES), "it does not have the cluster key"),
        (HELLO.encode() + bytes(PROOF_BYTES) + b"".join(encode_message(VOTE)), "the cluster key"),
    ],
    ids=str,
)
def test_a_stranger_is_closed_counted_and_named(said: bytes, why: str) -> None:
    async def scenario(world: GroupWorld) -> None:
        group = world.groups["n0"]
        before = group.links.refused_total
        stranger = await visit(world, said)
        assert stranger.is_closed
        assert group.links.refused_total == before + 1
        assert why in group.last_refusal
        assert group.figures()["raftLastRefusal"] == group.last_refusal

    among_strangers(scenario)


def test_a_recorded_conversation_is_worth_nothing_later() -> None:
    async def scenario(world: GroupWorld) -> None:
        first = await visit(world, HELLO.encode(), wait_ms=200)
        welcome = take_welcome(first.heard)
        assert welcome is not None
        proof = connectors_proof(KEY, HELLO, welcome)
        again = await visit(world, HELLO.encode() + proof + b"".join(encode_message(VOTE)))
        assert again.is_closed
        assert "cluster key" in world.groups["n0"].last_refusal

    among_strangers(scenario)


async def as_member(world: GroupWorld, *said: bytes) -> Stranger:
    """Greet n0 as n1 would, with the key if there is one, and go on."""
    key = world.key
    hello = HELLO._replace(has_key=key is not None)
    stranger = Stranger(hello.encode())
    await world.app.connect(lambda: stranger, world.nodes["n0"].address, PORT)
    while (welcome := take_welcome(stranger.heard)) is None:
        await world.cluster.clock.sleep_ms(5)
    assert not welcome.problem
    proof = bytes(PROOF_BYTES) if key is None else connectors_proof(key, hello, welcome)
    stranger.transport.write(proof + b"".join(said))
    for _ in range(50):
        await world.cluster.clock.sleep_ms(10)
    return stranger


@pytest.mark.parametrize("key", [KEY, None])
@pytest.mark.parametrize(
    ("said", "why"),
    [
        ((FRAME_BYTES_MAX + 1).to_bytes(4, "big"), "a frame of"),
        (b"\0\0\0\5\xffabcd", "a frame of kind 255"),
        (DAMAGED, "what it sends at 0 is a damaged record"),
    ],
    ids=["huge", "unknown", "damaged"],
)
def test_one_that_greets_well_and_talks_nonsense_is_closed_before_anything_changes(
    said: bytes, why: str, key: bytes | None
) -> None:
    async def scenario(world: GroupWorld) -> None:
        group = world.groups["n0"]
        last = group.log.last
        stranger = await as_member(world, said)
        assert stranger.is_closed
        assert why in group.last_refusal
        assert group.last_refusal.startswith("n1: ")
        assert group.log.last >= last

    among_strangers(scenario, key)


def test_messages_of_old_terms_and_boasts_about_new_ones_change_no_term() -> None:
    async def scenario(world: GroupWorld) -> None:
        old = Message(Kind.APPEND, "n1", "n0", 0)
        vote = VOTE._replace(is_transfer=False)
        boast = Message(Kind.PRE_VOTE, "n1", "n0", 99, 1 << 40, 99)
        await as_member(world, *(b"".join(encode_message(m)) for m in (old, vote, boast)))

    among_strangers(scenario)


def test_one_that_only_holds_connections_open_is_let_go() -> None:
    async def scenario(world: GroupWorld) -> None:
        strangers = [await visit(world, b"", wait_ms=20) for _ in range(80)]
        assert sum(stranger.is_closed for stranger in strangers) >= 16, "there is a limit"
        await world.cluster.clock.sleep_ms(4_000)
        assert all(stranger.is_closed for stranger in strangers)

    among_strangers(scenario)


class OtherGroup(RaftGroup):
    """n2 believes to be of another group."""

    def __init__(self, config: RaftConfig, *arguments: Any, **options: Any) -> None:
        if config.self_id == "n2":
            config = dataclasses.replace(config, group="other")
        super().__init__(config, *arguments, **options)


class OtherMembers(RaftGroup):
    """n2 knows of one member more."""

    def __init__(self, config: RaftConfig, *arguments: Any, **options: Any) -> None:
        if config.self_id == "n2":
            config = dataclasses.replace(config, peers={**config.peers, "n3": ("10.0.0.9", 1)})
        super().__init__(config, *arguments, **options)


class WithoutTheKey(RaftGroup):
    """n2 has no key."""

    def __init__(self, config: RaftConfig, *arguments: Any, **options: Any) -> None:
        if config.self_id == "n2":
            config = dataclasses.replace(config, key=None)
        super().__init__(config, *arguments, **options)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (OtherGroup, "group 'other', this is 'g'"),
        (OtherMembers, "correct dLegerPeers"),
        (WithoutTheKey, "set haClusterKey on all members"),
    ],
)
def test_a_member_that_is_set_up_otherwise_is_told_so(make: Any, why: str) -> None:
    async def story(world: GroupWorld) -> None:
        await world.cluster.clock.sleep_ms(5_000)
        assert world.server is None, "a new group begins when all members are there"
        assert why in world.groups["n2"].problem
        assert why in world.groups["n0"].last_refusal
        assert all(group.term == 0 for group in world.groups.values())

    with GroupWorld(3, key=KEY, make=make) as world:
        world.run(story)
