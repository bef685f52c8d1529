"""`rebuild_store`: queues and index from the log, whatever was there, wherever it is killed."""

import shutil
from pathlib import Path

import pytest
from tools_world import config_at, derived, fill, make_store, patch, snapshot, write_table

from skylark.errors import StoreDamaged, StoreFull, StoreLocked
from skylark.store import MessageStore, OsFiles
from skylark.store.tools import check_store, rebuild, rebuild_store
from skylark.testing.stores import HandClock, make_message, read_all


def log_of(root: Path) -> dict[str, bytes]:
    return {name: data for name, data in snapshot(root).items() if name.startswith("commitlog/")}


@pytest.mark.parametrize("crash", [False, True])
def test_a_rebuild_gives_back_what_was_there(tmp_path: Path, crash: bool) -> None:
    root = tmp_path / "store"
    config = make_store(root, crash=crash)
    before, log = derived(root), log_of(root)
    for path in [*root.glob("consumequeue/*/*/*"), *root.glob("index/*")]:
        patch(path, 3, b"damage")
    report = rebuild_store(config, OsFiles(), HandClock())
    assert derived(root) == before
    assert {name: log[name] for name in log_of(root)} == log_of(root)
    assert (report.queue_count, report.log_start) == (12, 0)
    assert report.index_file_count == len(list(root.glob("index/*")))
    assert not (root / ".rebuild").exists()
    assert not (root / "abort").exists()
    assert check_store(config).is_sound
    with MessageStore.open(config, OsFiles(), HandClock()) as store:
        assert store.recovery.was_clean
        assert store.recovery.problems == []


def test_a_store_in_use_is_refused_and_left_alone(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with MessageStore.open(config_at(root), OsFiles(), HandClock()) as store:
        store.mark_open()
        with pytest.raises(StoreLocked):
            rebuild_store(config_at(root), OsFiles(), HandClock())
    assert not (root / ".rebuild").exists()


def test_a_damaged_log_is_refused_and_nothing_changes(tmp_path: Path) -> None:
    root = tmp_path / "store"
    config = make_store(root)
    patch(root / "commitlog" / f"{0:020d}", 100, b"garbage" * 9)
    before = snapshot(root)
    with pytest.raises(StoreDamaged, match="sound ones follow"):
        rebuild_store(config, OsFiles(), HandClock())
    assert snapshot(root) == before
    with pytest.raises(StoreDamaged):
        rebuild_store(config, OsFiles(), HandClock())  # The lock was let go.


def test_the_offsets_of_expired_queues_go_on(tmp_path: Path) -> None:
    root = tmp_path / "store"
    clock = HandClock()
    config = config_at(root)
    with MessageStore.open(config, OsFiles(), clock) as store:
        store.mark_open()
        fill(store, clock, 100)
        idle_end = store.max_offset("TopicA", 0)
        for _ in range(200):  # Until all but these are gone.
            store.put([make_message("Busy", 0, b"x" * 100, keys="k")])
        while store.log.start + 4096 * 3 < store.log.appended:
            store.log.detach_first().remove()
        for queue in store.queues.opened():
            queue.remove_before(store.log.start)
        store.index.remove_before(store.log.start)
    assert idle_end > 0
    report = rebuild_store(config, OsFiles(), clock)
    assert ("TopicA", 0, idle_end) in report.kept_offsets
    assert check_store(config).findings == []
    with MessageStore.open(config, OsFiles(), clock) as store:
        assert store.max_offset("TopicA", 0) == store.min_offset("TopicA", 0) == idle_end
        fill(store, clock, 12)
        assert store.max_offset("TopicA", 0) > idle_end
        assert len(read_all(store, "TopicA", 0, idle_end)) == 2
    assert check_store(config).findings == []


def test_topics_that_were_deleted_stay_deleted(tmp_path: Path) -> None:
    root = tmp_path / "store"
    config, clock = config_at(root), HandClock()
    with MessageStore.open(config, OsFiles(), clock) as store:
        store.mark_open()
        fill(store, clock, 60)
        store.drop_topic("TopicB")
    known = {"TopicA": {"topicName": "TopicA"}, "TopicC": {"topicName": "TopicC"}}
    write_table(root, "topics.json", {"topicConfigTable": known})
    report = rebuild_store(config, OsFiles(), clock)
    assert report.topics_left_out == ["TopicB"]
    assert sorted(path.name for path in (root / "consumequeue").iterdir()) == ["TopicA", "TopicC"]


class Killed(Exception):
    """Stands for the end of the process."""


@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("without_exchange", [False, True])
def test_a_kill_at_any_step_of_the_swap_leaves_a_store_that_opens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, crash: bool, without_exchange: bool
) -> None:
    pristine = tmp_path / "pristine"
    make_store(pristine, 12, crash=crash)
    wanted = derived(pristine)
    for path in [*pristine.glob("consumequeue/*/*/*"), *pristine.glob("index/*")]:
        patch(path, 3, b"damage")
    if without_exchange:
        monkeypatch.setattr(rebuild.ctypes, "CDLL", lambda *_, **__: object())
    steps = 0
    while True:
        root = tmp_path / f"store{steps}"
        shutil.copytree(pristine, root)
        config = config_at(root)
        fuse = _Fuse(steps)
        with monkeypatch.context() as patched:
            fuse.arm(patched)
            try:
                rebuild_store(config, fuse.files, HandClock())
            except Killed:
                pass
            else:
                break
        with MessageStore.open(config, OsFiles(), HandClock()):
            pass
        rebuild_store(config, OsFiles(), HandClock())
        assert derived(root) == wanted, f"killed after {steps} steps"
        assert check_store(config).findings == []
        assert not (root / ".rebuild").exists()
        steps += 1
    assert steps >= 4


class _Fuse:
    """Ends the process at the n-th change that the swap makes."""

    def __init__(self, steps: int) -> None:
        self._left = steps
        self._is_swapping = False
        self.files = OsFiles()

    def arm(self, patched: pytest.MonkeyPatch) -> None:
        swap, fuse = rebuild._swap, self

        def burning_swap(files, root, new):
            fuse._is_swapping = True
            swap(files, root, new)
            fuse._is_swapping = False

        patched.setattr(rebuild, "_swap", burning_swap)
        patched.setattr(rebuild, "_remove_tree", self._remove_tree)
        for name in ("rename", "remove"):
            patched.setattr(self.files, name, self._burning(getattr(self.files, name)))
        patched.setattr(rebuild, "exchange", self._burning(rebuild.exchange))
        patched.setattr(rebuild.os, "rename", self._burning(rebuild.os.rename))

    def _burning(self, function):
        def step(*arguments):
            if self._is_swapping:
                if self._left == 0:
                    raise Killed
                self._left -= 1
            return function(*arguments)

        return step

    def _remove_tree(self, path: str) -> None:
        if not self._is_swapping:  # A killed process does not tidy up.
            shutil.rmtree(path, ignore_errors=True)


def test_a_full_disk_leaves_the_store_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "store"
    config = make_store(root)
    before = snapshot(root)
    files = OsFiles()
    create = files.create

    def full(path: str, size_bytes: int, *, reserve: bool) -> None:
        if "index" in path:
            raise StoreFull(f"{path}: no space")
        create(path, size_bytes, reserve=reserve)

    monkeypatch.setattr(files, "create", full)
    with pytest.raises(StoreFull):
        rebuild_store(config, files, HandClock())
    assert snapshot(root) == before
