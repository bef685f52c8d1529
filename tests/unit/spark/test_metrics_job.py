"""MetricsJob: from where to where it counts, while brokers come, go and lag behind each other."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

from skylark.errors import TransportError
from skylark.spark import cluster as clusters
from skylark.spark.cluster import Cluster
from skylark.spark.metrics import MetricsJob, job, sampling
from skylark.spark.metrics.job import Step
from skylark.spark.metrics.rows import added, to_table
from skylark.spark.metrics.sampling import Sample
from skylark.spark.metrics.table import MetricTable
from skylark.spark.offsets import Offsets, QueueKey
from skylark.spark.options import Access

A, B = (QueueKey("Topic", name, 0) for name in ("a", "b"))


class Brokers(Cluster):
    """Two brokers of one queue each: what they say of it, and whether that is a master's word."""

    def __init__(self, *, retry_ms: int = 0) -> None:
        super().__init__(Access("ns:1", retry_ms=retry_ms))
        self.first = {A: 0, B: 0}
        self.ends = {A: [100], B: [100]}  # Each answer is the next of a list, then the last.
        self.replicas: set[QueueKey] = set()

    def queues(self, topics: Iterable[str], *rest: Any, **options: Any) -> list[QueueKey]:
        return [A, B]

    def min_offset(self, queue: QueueKey) -> int:
        return self.first[queue]

    def max_offset(self, queue: QueueKey) -> int:
        ends = self.ends[queue]
        return ends.pop(0) if len(ends) > 1 else ends[0]

    def has_master(self, queue: QueueKey) -> bool:
        return queue not in self.replicas

    def commit(self, group: str, offsets: Offsets) -> None:
        pass


class Counting(MetricsJob):
    """Counts nothing, and remembers what it was to count."""

    def __init__(self, root: Any, *, meanwhile: Any = lambda: None) -> None:
        no_spark: Any = None
        super().__init__(no_spark, root, namesrv="ns:1")
        self.wanted: list[tuple[QueueKey, int, int]] = []
        self.meanwhile = meanwhile

    def _counted(self, found: Any, plan: Any, number: int) -> Any:
        self.wanted += [
            (queue, plan.begin[queue], plan.end[queue])
            for queue in plan.queues
            if plan.begin[queue] != plan.end[queue]
        ]
        self.meanwhile()
        return [], []


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> Brokers:
    """What a job finds; no waiting."""
    now = [0.0]
    clock = SimpleNamespace(
        monotonic=lambda: now[0], sleep=lambda s: now.__setitem__(0, now[0] + s)
    )
    monkeypatch.setattr(clusters, "time", clock)
    found = Brokers()
    monkeypatch.setattr(job, "Cluster", lambda access: found)
    monkeypatch.setattr(job, "sample", lambda *_, **__: Sample(("Topic",), (), False, ()))
    return found


def counted_to(root: Any, offset: int) -> Offsets:
    """A table that has counted both queues so far."""
    ends = {A: offset, B: offset}
    with MetricTable(root) as table:
        table.commit(0, added(to_table([])), [], ends)
    return ends


def ends(root: Any) -> Offsets:
    return MetricTable(root).catalogue.ends()


def test_what_has_come_since_the_last_step_is_counted(brokers: Brokers, tmp_path: Any) -> None:
    counted_to(tmp_path, 60)
    counting, steps = Counting(tmp_path), list[Step]()
    counting.run(once=True, on_step=steps.append)
    assert counting.wanted == [(A, 60, 100), (B, 60, 100)]
    assert steps == [Step(1, 80, 0)]
    assert ends(tmp_path) == {A: 100, B: 100}


def test_brokers_are_asked_for_a_sample_with_the_account_of_the_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[dict[str, Any]] = []

    def connect(name_server: str, **settings: Any) -> Any:
        asked.append(settings)
        raise ConnectionError("that is all")

    monkeypatch.setattr(sampling, "connect", connect)
    access = Access("ns:1", access_key="me", secret_key="hidden")
    with pytest.raises(ConnectionError):
        sampling.sample(access, trace_topic="Trace", now_ms=0)
    assert asked == [{"access_key": "me", "secret_key": "hidden"}]


def test_nothing_is_counted_in_a_queue_whose_replica_lags_until_its_master_is_back(
    brokers: Brokers, tmp_path: Any
) -> None:
    counted_to(tmp_path, 90)
    brokers.replicas, brokers.ends[A] = {A}, [70]
    counting, steps = Counting(tmp_path), list[Step]()
    counting.run(once=True, on_step=steps.append)
    assert counting.wanted == [(B, 90, 100)], "the other goes on"
    assert steps == [Step(1, 10, 0)]
    assert ends(tmp_path) == {A: 90, B: 100}
    brokers.replicas, brokers.ends[A] = set(), [100]
    again = Counting(tmp_path)
    again.run(once=True)
    assert again.wanted == [(A, 90, 100)]


def test_a_replica_that_takes_over_while_a_master_settles_is_no_masters_word(
    brokers: Brokers, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted_to(tmp_path, 90)
    brokers.ends[A] = [70]

    def dies(queue: QueueKey, least: int) -> int:
        brokers.replicas = {A}
        return 70

    monkeypatch.setattr(brokers, "settled_end", dies)
    counting = Counting(tmp_path)
    counting.run(once=True)
    assert counting.wanted == [(B, 90, 100)]


def test_a_new_master_is_given_time_to_learn_where_its_queue_ends(
    brokers: Brokers, tmp_path: Any
) -> None:
    counted_to(tmp_path, 90)
    brokers.access = Access("ns:1", retry_ms=10_000)
    brokers.ends[A] = [70, 70, 80, 100]
    counting = Counting(tmp_path)
    counting.run(once=True)
    assert counting.wanted == [(A, 90, 100), (B, 90, 100)]


def test_a_queue_that_was_made_anew_is_counted_from_its_first_message(
    brokers: Brokers, tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    counted_to(tmp_path, 90)
    brokers.first[A], brokers.ends[A] = 3, [70]
    counting = Counting(tmp_path)
    counting.run(once=True)
    assert counting.wanted == [(A, 3, 70), (B, 90, 100)]
    assert ends(tmp_path) == {A: 70, B: 100}
    assert "queue=Topic/a/0 was counted up to 90 and goes on at 3" in caplog.text


def test_what_a_master_has_removed_is_passed_over(brokers: Brokers, tmp_path: Any) -> None:
    counted_to(tmp_path, 20)
    brokers.first[A] = 50
    counting = Counting(tmp_path)
    counting.run(once=True)
    assert counting.wanted == [(A, 50, 100), (B, 20, 100)]


def test_a_replica_is_not_believed_that_messages_were_removed(
    brokers: Brokers, tmp_path: Any
) -> None:
    before = counted_to(tmp_path, 20)
    brokers.first[A], brokers.replicas = 50, {A}
    with pytest.raises(TransportError, match="begins at 50, which was to be read from 20, at a"):
        Counting(tmp_path).run(once=True)
    assert ends(tmp_path) == before


def test_a_step_during_which_a_lagging_replica_took_over_counts_nothing(
    brokers: Brokers, tmp_path: Any
) -> None:
    before = counted_to(tmp_path, 20)
    # Spark has asked the replica, which had less than was planned with the master.
    counting = Counting(tmp_path, meanwhile=lambda: brokers.ends.update({A: [70]}))
    with pytest.raises(TransportError, match="Topic/a/0 ends at 70, and was to be counted to 100"):
        counting.run(once=True)
    assert ends(tmp_path) == before
