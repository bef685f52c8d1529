"""Messages together with rows of SQLite; the same on PostgreSQL is in interop/."""

from __future__ import annotations

import pathlib
import signal
import time
from collections.abc import Iterator
from contextlib import closing

import pytest
from sql_world import OTHERS, STEPS, PendingAt, SqlWorld

from skylark.testing import DiskBroker


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqlWorld]:
    folder: pathlib.Path = tmp_path_factory.mktemp("sql")
    with DiskBroker(
        folder,
        transaction_time_out=300,
        transaction_check_interval=500,
        transaction_check_max=1_000,  # Producers that know nothing are asked as well.
    ) as broker:
        file = folder / "shop.db"
        urls = f"sqlite:///{file}", f"sqlite+aiosqlite:///{file}"
        with closing(SqlWorld(broker.address, *urls)) as world:
            yield world


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_producer_killed_at_any_step_loses_nothing_and_leaves_no_ghost(
    world: SqlWorld, kind: str
) -> None:
    topic, expected = f"Orders-{kind}", {}
    for step, is_there in {**STEPS, **OTHERS}.items():
        key = f"{kind}-{step}"
        said = world.produce(topic, key, step, kind)
        assert said == {"raise": "raised", "none": "done"}.get(step, f"dies at {step}")
        expected[key] = is_there
    with world.resolver():  # Nobody else of the group is alive.
        world.wait_over(PendingAt(world.address))
    world.judge(topic, expected)


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_transaction_that_was_taken_for_dead_fails_in_the_database_as_well(
    world: SqlWorld, kind: str
) -> None:
    topic = f"Late-{kind}"
    late = world.start(topic, f"late-{kind}", "late", kind)
    assert late.stdout is not None
    assert late.stdout.readline().strip() == "waits"
    late.send_signal(signal.SIGSTOP)  # Its own word, that it is under way, is not heard.
    with world.resolver():
        world.wait_over(PendingAt(world.address))
    late.send_signal(signal.SIGCONT)
    assert world.let_go(late) == "too late"
    world.judge(topic, {f"late-{kind}": False})


def test_a_slow_transaction_that_has_written_cannot_be_taken_for_dead(world: SqlWorld) -> None:
    slow = world.start("Slow", "slow-1", "slow", "sync")
    with world.resolver():
        assert slow.stdout is not None
        assert slow.stdout.readline().strip() == "waits"
        time.sleep(2)  # Several checks; SQLite's lock is held by the order.
        assert world.let_go(slow) == "done"
        world.wait_over(PendingAt(world.address))
    world.judge("Slow", {"slow-1": True})


def test_old_markers_are_deleted(world: SqlWorld) -> None:
    assert world.produce("Cleaned", "cleaned-1", "none", "sync") == "done"
    assert world.rows()
    with world.resolver("--keep", "0ms"):
        deadline = time.monotonic() + 20
        while world.rows() and time.monotonic() < deadline:
            time.sleep(0.05)
    assert world.rows() == []
