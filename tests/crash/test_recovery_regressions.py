"""Crashes that once cost something, each found by the enumeration and kept as a case of its own."""

import dataclasses

import pytest
from crash_judge import Judge
from crash_script import ASYNC, SYNC, WITH_EXT, ScriptedRun

from skylark.errors import StoreDamaged
from skylark.store import MessageStore
from skylark.testing.stores import HandClock, make_message


def judge_every_crash(run: ScriptedRun, *, subsets: int = 30) -> int:
    """Judge whatever a power cut at the end of a run could leave."""
    run.note()
    judge = Judge(run.config, run.clock.now_ms())
    count = 0
    for how, disk in run.files.crash_states(subsets=subsets):
        try:
            judge.judge(disk, run.moments[-1], run.moments[-1].histories).close()
        except Exception as error:
            error.add_note(f"after: {how}")
            raise
        count += 1
    return count


def put_to(run: ScriptedRun, topic: str, queue_id: int = 0, count: int = 1) -> None:
    run.put_these(
        [
            make_message(topic, queue_id, b"body %d" % run.number, keys="k1", tag="TagA")
            for _ in range(count)
        ]
    )


def test_queue_files_of_a_killed_process_become_durable_with_the_next_checkpoint():
    run = ScriptedRun(SYNC, seed=0)
    put_to(run, "TopicA", count=3)
    run.flush()
    run.kill()
    assert judge_every_crash(run) > 30


def test_index_files_removed_by_recovery_do_not_come_back_after_a_clean_stop():
    run = ScriptedRun(ASYNC, seed=0)
    put_to(run, "TopicA", count=3)
    index = run.files.list_names("/store/index")
    run.files.end_process()
    run.files.truncate(f"/store/index/{index[0]}", 0)
    run.store = MessageStore.open(run.config, run.files, run.clock)
    run.close()
    judge_every_crash(run)


def test_an_index_that_was_dropped_does_not_come_back_beside_its_successor():
    run = ScriptedRun(ASYNC, seed=0)
    put_to(run, "TopicA", count=3)
    run.flush()
    run.files.sync_directory("/store/index")
    run.files.end_process()
    run.files.remove("/store/checkpoint")
    run.files.sync_directory("/store")
    run.store = MessageStore.open(run.config, run.files, run.clock)
    run.close()
    judge_every_crash(run)


def damaged_queue() -> ScriptedRun:
    """A store after a clean stop, with one queue that does not fit its log."""
    run = ScriptedRun(SYNC, seed=0)
    put_to(run, "TopicA", count=14)
    put_to(run, "TopicB", count=3)
    run.flush()
    run.close()
    path = "/store/consumequeue/TopicA/0/00000000000000000200"
    run.files.overwrite(path, 20, bytes([0, 0, 0, 0, 0, 1, 0, 0]))
    return run


def test_a_crash_in_the_middle_of_building_a_queue_again_begins_once_more():
    run = damaged_queue()
    changes: list[int] = []
    run.files.on_change = lambda change: changes.append(len(run.files.trace))
    before = len(run.files.trace)
    run.store = MessageStore.open(run.config, run.files, run.clock)
    assert run.store.max_offset("TopicA", 0) == 14
    run.files.on_change = None
    run.note()
    promise = run.moments[-1]
    judge = Judge(run.config, run.clock.now_ms())
    trace = run.files.trace
    assert len(trace) > before + 5
    disk = run.files.replay(trace[:before])
    disk.overwrite(
        "/store/consumequeue/TopicA/0/00000000000000000200", 20, bytes([0, 0, 0, 0, 0, 1, 0, 0])
    )
    for change in trace[before:]:
        disk.apply(change)
        for how, state in disk.crash_states(subsets=4):
            try:
                judge.judge(state, promise, promise.histories).close()
            except Exception as error:
                error.add_note(f"after: {how} behind {change.kind} {change.path}")
                raise


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_queue_whose_files_are_gone_is_built_again_even_if_its_directory_is_left(is_clean):
    run = ScriptedRun(SYNC, seed=0)
    put_to(run, "TopicA", count=5)
    put_to(run, "TopicB", count=5)
    run.flush_queues(thorough=True)
    if is_clean:
        run.close()
    else:
        run.files.end_process()
    run.files.remove("/store/consumequeue/TopicA/0/00000000000000000000")
    judge = Judge(run.config, run.clock.now_ms())
    judge.judge(run.files.copy(), run.moments[-1], run.moments[-1].histories).close()


def test_a_first_queue_file_that_is_gone_is_noticed_while_the_log_has_its_records():
    run = ScriptedRun(SYNC, seed=0)
    put_to(run, "TopicA", count=14)
    run.flush_queues(thorough=True)
    run.close()
    run.files.remove("/store/consumequeue/TopicA/0/00000000000000000000")
    judge = Judge(run.config, run.clock.now_ms())
    judge.judge(run.files.copy(), run.moments[-1], run.moments[-1].histories).close()


def test_an_ext_file_that_came_back_empty_is_not_written_into():
    run = ScriptedRun(WITH_EXT, seed=0)
    put_to(run, "TopicA", count=8)
    run.flush_queues(thorough=True)
    files = run.files.list_names("/store/consumequeue_ext/TopicA/0")
    assert len(files) >= 2
    run.files.end_process()
    run.files.truncate(f"/store/consumequeue_ext/TopicA/0/{files[-1]}", 0)
    judge = Judge(run.config, run.clock.now_ms())
    store = judge.judge(run.files.copy(), run.moments[-1], run.moments[-1].histories)
    store.put([make_message("TopicA", 0, b"more") for _ in range(8)])
    store.close()


@pytest.mark.parametrize("checkpointed", [True, False])
def test_messages_of_a_topic_that_was_deleted_and_made_again_survive_a_crash(checkpointed):
    run = ScriptedRun(SYNC, seed=0)
    put_to(run, "TopicA", count=5)
    put_to(run, "TopicB", count=2)
    run.flush()
    if checkpointed:
        run.flush_queues(thorough=True)
    run.store.drop_topic("TopicA")
    [result] = run.store.put([make_message("TopicA", 0, b"of the new topic", keys="k1")])
    assert result.queue_offset == 0
    run.flush()
    for how, disk in run.files.crash_states(subsets=20):
        store = MessageStore.open(run.config, disk, HandClock(run.clock.now_ms()))
        found = store.get("TopicA", 0, 0, 32)
        assert found.message_count == 1, how
        assert b"of the new topic" in found.body, how
        store.close()


def test_a_deleted_topic_stays_deleted_when_queues_are_built_from_the_log():
    run = ScriptedRun(SYNC, seed=0)
    put_to(run, "TopicA", count=5)
    run.flush()
    run.store.drop_topic("TopicA")
    run.put_these([make_message("TopicA", 0, b"new %d" % i) for i in range(2)])
    run.flush()
    run.close()
    run.files.remove("/store/checkpoint")
    for name in run.files.list_names("/store/index"):
        run.files.remove(f"/store/index/{name}")
    store = MessageStore.open(
        dataclasses.replace(run.config), run.files.copy(), HandClock(run.clock.now_ms())
    )
    found = store.get("TopicA", 0, store.min_offset("TopicA", 0), 32)
    assert [bytes(r)[-100:].count(b"new ") for r in found.records()] == [1, 1]
    assert store.max_offset("TopicA", 0) == 2
    [result] = store.put([make_message("TopicA", 0, b"newer")])
    assert result.queue_offset == 2
    store.close()


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_deleted_topic_does_not_come_back_with_a_restart(is_clean):
    run = ScriptedRun(SYNC, seed=0)
    put_to(run, "TopicA", count=5)
    put_to(run, "TopicB", count=5)
    run.flush_queues(thorough=True)
    run.store.drop_topic("TopicA")
    if is_clean:
        run.store.close()
    run.files.end_process()
    with MessageStore.open(run.config, run.files.copy(), HandClock(run.clock.now_ms())) as store:
        assert store.max_offset("TopicA", 0) == 0
        [result] = store.put([make_message("TopicA", 0, b"new")])
        assert result.queue_offset == 0


def test_a_queue_file_that_retention_deleted_and_a_crash_brought_back_is_deleted_again():
    run = ScriptedRun(SYNC, seed=0)
    big = [make_message("TopicA", 0, bytes([65 + i]) * 1000) for i in range(14)]
    run.put_these(big)
    run.flush()
    run.flush_queues(thorough=True)
    run.expire()
    assert run.store.min_offset("TopicA", 0) > 10
    judge_every_crash(run)
    judge = Judge(run.config, run.clock.now_ms())
    disk = run.files.copy()
    # The removal of the queue's first file was lost, that of the log's files was not.
    lost = next(
        state
        for n in range(len(run.files.trace), 0, -1)
        for how, state in run.files.replay(run.files.trace[:n]).crash_states(subsets=0)
        if state.exists("/store/consumequeue/TopicA/0/00000000000000000000")
        and state.list_names("/store/commitlog") == disk.list_names("/store/commitlog")
    )
    judge.judge(lost, run.moments[-1], run.moments[-1].histories).close()


def test_a_topic_that_was_damaged_in_the_log_is_named_with_its_place():
    run = ScriptedRun(SYNC, seed=0)
    put_to(run, "TopicA", count=3)
    run.flush()
    run.files.end_process()
    record = run.history[-1].raw
    at = run.history[-1].physical_offset + record.index(b"TopicA") + 5
    run.files.overwrite("/store/commitlog/00000000000000000000", at, b"/")
    without = dataclasses.replace(run.config, sums_enable=False)
    with pytest.raises(StoreDamaged, match=r"00000000000000000000 at .*store check"):
        MessageStore.open(without, run.files.copy(), HandClock(run.clock.now_ms()))
    # With sums it is seen before anyone looks for a queue of that name.
    with MessageStore.open(run.config, run.files, HandClock(run.clock.now_ms())) as store:
        assert store.log.appended == run.history[-2].end
        assert "is not what its sum says" in store.recovery.problems[0]


def test_a_queue_keeps_its_offsets_when_its_last_durable_file_expires():
    run = ScriptedRun(ASYNC, seed=0)
    run.put_these([make_message("TopicA", 0, b"x" * 700) for _ in range(10)])
    run.put_to("TopicB", 0, 6, 1000)
    run.flush_queues(thorough=True)
    run.flush_queues(thorough=True)
    # The eleventh begins a new queue file, and nothing of it is flushed when the first one goes.
    put_to(run, "TopicA", count=1)
    run.expire()
    assert run.files.list_names("/store/consumequeue/TopicA/0") == ["00000000000000000200"]
    judge_every_crash(run)


def test_a_file_made_ahead_goes_before_the_files_that_truncation_deletes():
    run = ScriptedRun(SYNC, seed=0)
    run.put_to("TopicA", 0, 5, 1500)  # Two to a file: the third file is more than half full.
    run.put_to("TopicA", 0, 1, 900)
    run.flush()
    assert len(run.files.list_names("/store/commitlog")) == len(run.store.log.mapped) + 1
    before = len(run.files.trace)
    run.truncate(4)
    judge = Judge(run.config, run.clock.now_ms())
    promise, possible = run.moments[-2], run.moments[-2].histories
    disk = run.files.replay(run.files.trace[:before])
    for change in run.files.trace[before:]:
        disk.apply(change)
        for how, state in disk.crash_states(subsets=2):
            try:
                judge.judge(state, promise, possible).close()
            except Exception as error:
                error.add_note(f"after: {how} behind {change.kind} {change.path}")
                raise
