"""300 crash points in the transaction flow, and bugs that the same runs must catch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
from transaction_crashes import Run, Story

from skylark import Message, StoredMessage
from skylark.broker import half_messages
from skylark.broker.half_messages import Ending, Half
from skylark.broker.processors.send import SendProcessor
from skylark.broker.transaction_checks import TransactionChecks
from skylark.broker.transactions import TransactionService
from skylark.errors import SkylarkError
from skylark.model.topic import OP_HALF_TOPIC
from skylark.testing import MemoryBroker

CRASHES = 6
SYNC_SEEDS = range(30)
ASYNC_SEEDS = range(100, 120)


def sync_run(seed: int) -> Story:
    return Run(seed, crashes=CRASHES, power_cuts=True).run()


def async_run(seed: int) -> Story:
    # What was not flushed survives the process, not the machine.
    return Run(seed, crashes=CRASHES, power_cuts=False, flush_disk_type="ASYNC_FLUSH").run()


def test_300_crash_points() -> None:
    stories = [sync_run(seed) for seed in SYNC_SEEDS]
    stories += [async_run(seed) for seed in ASYNC_SEEDS]
    assert [problem for story in stories for problem in story.problems] == []
    assert sum(story.crashes for story in stories) >= 300
    # The runs are about something: all kinds of ends, and many that only a check could bring.
    decisions = [value for story in stories for value in story.decisions.values()]
    assert min(decisions.count(True), decisions.count(False)) > 150
    assert sum(story.checks for story in stories) > 150


# Planted bugs.


def half_is_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SendProcessor, "_is_half", lambda self, sys_flag, properties: False)


def no_op_after_a_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    mark_over = TransactionService._mark_over

    def planted(
        self: TransactionService, halves: list[Half], ending: Ending, messages: Any = None
    ) -> Any:
        if ending is Ending.COMMIT and messages:
            results = self._store.put_group(messages)
            for half in halves:
                self._halves.remove(half)
            return results
        return mark_over(self, halves, ending, messages)

    monkeypatch.setattr(TransactionService, "_mark_over", planted)


def pending_halves_are_not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TransactionService, "_loaded", lambda self, queue_offset: None)


def ops_are_not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TransactionService, "_load_ops", lambda self, first: (set(), {}))


def copies_are_other_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each copy is by itself, and the half before it is not marked as over: as in RocketMQ."""
    mark_over = TransactionService._mark_over

    def planted(
        self: TransactionService, halves: list[Half], ending: Ending, messages: Any = None
    ) -> Any:
        if ending is Ending.MOVED and messages:
            for half in halves:
                self._halves.look_later(half.queue_offset, self._clock.monotonic_ms() + 9_000)
            return self._store.put_group(messages)
        return mark_over(self, halves, ending, messages)

    monkeypatch.setattr(TransactionService, "_mark_over", planted)
    monkeypatch.setattr(
        half_messages,
        "id_of",
        lambda properties, offset: half_messages.TransactionId(
            properties.get("PGROUP", ""), f"@{offset}"
        ),
    )


def nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TransactionChecks, "_ask", lambda self, check: None)


def a_rollback_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    finish = TransactionService.finish

    def planted(self: TransactionService, half: Half, stored: Any, ending: Ending) -> int:
        if ending is Ending.ROLLBACK:
            ending = Ending.COMMIT
        return finish(self, half, stored, ending)

    monkeypatch.setattr(TransactionService, "finish", planted)


BUGS: list[Callable[[pytest.MonkeyPatch], None]] = [
    half_is_visible,
    no_op_after_a_commit,
    pending_halves_are_not_loaded,
    ops_are_not_loaded,
    copies_are_other_transactions,
    nobody_is_asked,
    a_rollback_commits,
]


@pytest.mark.parametrize("plant", BUGS, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_caught(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    for seed in [*ASYNC_SEEDS, *SYNC_SEEDS][:10]:
        problems: list[str] = ["it broke"]
        with contextlib.suppress(SkylarkError):
            problems = async_run(seed).problems
        if problems:
            return
    pytest.fail("nobody noticed")


@pytest.mark.parametrize("is_repaired", [True, False])
def test_a_commit_whose_op_was_lost_with_the_end_of_the_log_is_not_repeated(
    is_repaired: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one place where a crash can part a commit from its op; and that the test can see it."""
    if not is_repaired:
        monkeypatch.setattr(TransactionService, "_is_tail", lambda self, half: False)

    async def check(half: StoredMessage) -> bool:
        return True

    async def main() -> int:
        async with mq.connect() as client, client.producer("group", check=check) as producer:
            async with producer.transaction() as transaction:
                await transaction.send(Message("Transfers", b"once"))
            (op,) = mq.messages(OP_HALF_TOPIC)
            mq.faults.kill()
            files = mq._cluster.nodes["broker"].files
            assert files is not None
            (log,) = [path for path in files.all_paths() if "/commitlog/" in path]
            files.overwrite(log, op.physical_offset, bytes(op.size_bytes))
            mq.faults.start()
            await mq.wait_ready()
            assert mq.pending_transactions == (0 if is_repaired else 1)
            await mq.clock.advance(minutes=5)
            return len(mq.messages("Transfers"))

    with MemoryBroker(flush_disk_type="ASYNC_FLUSH") as mq:
        assert mq.run(main) == (1 if is_repaired else 2)
