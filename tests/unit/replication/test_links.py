"""The greeting at the replication port: who gets in, and who does not."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from skylark.replication import EpochTable, Master, Quorum
from skylark.replication.links import CONNECTIONS_MAX, MasterPort, Secret, _FollowerLink
from skylark.replication.stream import (
    Hello,
    encode_report,
    masters_proof,
    replicas_proof,
    take_welcome,
)
from skylark.testing.files import SimFiles
from skylark.testing.stores import HandClock

KEY = b"key"
GROUP = "DefaultCluster/broker-a"
HELLO = Hello(b"n" * 16, 1, GROUP)


class Log:
    start = 0

    def read(self, offset: int, size: int) -> memoryview:
        return memoryview(bytes(size))


class Wire:
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        self.sent = bytearray()
        self.is_closed = False

    def get_extra_info(self, name: str) -> tuple[str, int]:
        return "10.0.0.2", 4711

    def set_write_buffer_limits(self, high: int) -> None: ...

    def write(self, data: bytes) -> None:
        assert not self.is_closed
        self.sent += data

    def is_closing(self) -> bool:
        return self.is_closed

    def abort(self) -> None:
        self.is_closed = True

    close = abort


class Scene:
    """A master's port without a network."""

    def __init__(self) -> None:
        self.clock = HandClock()
        self.log_end = 100
        master = Master(
            Log(), lambda: self.log_end, file_bytes=1000, batch_bytes=100, heartbeat_ms=5_000,
            silence_ms=20_000,
        )  # fmt: skip
        epochs = EpochTable("/c/epochs.json", SimFiles())
        epochs.begin(mark=5, start=0)
        nonces = itertools.count(1)
        self.port = MasterPort(
            master,
            Quorum(master, fall_behind_max=1000),
            None,  # type: ignore[arg-type]
            self.clock,  # type: ignore[arg-type]
            host="",
            port=0,
            secret=Secret(KEY, GROUP, epochs, lambda: next(nonces).to_bytes(16, "big")),
        )
        self.replaced: list[int] = []
        self.port.on_replaced = self.replaced.append

    def connect(self) -> tuple[_FollowerLink, Wire]:
        link, wire = _FollowerLink(self.port), Wire()
        link.connection_made(wire)  # type: ignore[arg-type]
        return link, wire

    def greet(self, hello: Hello = HELLO, key: bytes = KEY) -> tuple[_FollowerLink, Wire, bytes]:
        """Go through the whole greeting; return what was said as well."""
        link, wire = self.connect()
        link.data_received(hello.encode())
        if wire.is_closed:
            return link, wire, hello.encode()
        found = take_welcome(wire.sent)
        assert found is not None
        welcome, proof = found
        assert proof == masters_proof(KEY, hello, welcome)
        said = hello.encode() + replicas_proof(key, hello, welcome)
        link.data_received(said[len(hello.encode()) :])
        return link, wire, said


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_who_has_the_key_is_believed_from_the_first_report_on(scene: Scene) -> None:
    link, wire, _ = scene.greet()
    link.data_received(encode_report(40))
    assert not wire.is_closed
    assert scene.port.master.confirmed() == 40
    assert len(wire.sent) == 12 + 60


def test_a_recorded_conversation_is_worth_nothing(scene: Scene) -> None:
    _, _, said = scene.greet()
    link, wire = scene.connect()
    link.data_received(said + encode_report(100))
    assert wire.is_closed
    assert scene.port.master.confirmed() == -1
    assert "cluster key" in scene.port.last_refusal


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"hello": HELLO._replace(group="Other/broker-a")}, "a replica of 'Other/broker-a'"),
        ({"key": b"another"}, "cluster key"),
    ],
)
def test_others_are_refused_and_see_nothing_of_the_log(
    scene: Scene, change: dict[str, Any], word: str
) -> None:
    _, wire, _ = scene.greet(**change)
    assert wire.is_closed
    assert word in scene.port.last_refusal
    assert not scene.port.master.followers


def test_a_newer_epoch_with_proof_says_that_we_are_replaced(scene: Scene) -> None:
    _, wire, _ = scene.greet(HELLO._replace(epoch=9))
    assert wire.is_closed
    assert scene.replaced == [9]


def test_a_newer_epoch_without_proof_says_nothing(scene: Scene) -> None:
    _, wire, _ = scene.greet(HELLO._replace(epoch=9), key=b"another")
    assert wire.is_closed
    assert scene.replaced == []


def test_one_that_says_nothing_is_dropped(scene: Scene) -> None:
    link, wire = scene.connect()
    link.data_received(HELLO.encode()[:10])
    scene.clock.advance_ms(5_001)
    link.tick()
    assert wire.is_closed


def test_a_greeting_that_does_not_end_is_cut(scene: Scene) -> None:
    link, wire = scene.connect()
    link.data_received(HELLO.encode()[:20])
    link.data_received(bytes(10_000))
    assert wire.is_closed


def test_connections_have_a_limit(scene: Scene) -> None:
    wires = [scene.connect()[1] for _ in range(CONNECTIONS_MAX + 1)]
    assert [wire.is_closed for wire in wires] == [False] * CONNECTIONS_MAX + [True]
