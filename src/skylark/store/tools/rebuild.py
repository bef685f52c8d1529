"""rebuild_store: queues and index made again from the commit log.

They are built beside the store, by the engine's own recovery, and swapped in when they are whole:

    .rebuild/new/     consumequeue, index, sums and checkpoint as they will be
    exchange          consumequeue, index, then sums: one atomic step each where the system can
    checkpoint        replaced; until then the old one makes the engine check or build more
    abort             removed
    .rebuild/         removed

A crash at any point leaves a store that opens: with the old files, with the new ones, or with one
of each, which recovery knows how to treat. The next rebuild removes what was left over.

A queue whose messages have all expired is not in the log any more. Only its files know at which
offset it goes on, so it gets new ones that say just that.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import logging
import os
import shutil
from dataclasses import dataclass, field, replace

from ...clock import Clock
from ...errors import StoreUnreadable
from ...protocol.bodies import TopicConfigTable
from ..append import ENTRY, ENTRY_BYTES, FILLER_SIZE
from ..config import StoreConfig
from ..files import Files, store_error
from ..message_store import MessageStore
from ..sums import sums_directory
from .check_queues import is_system_topic
from .check_tables import read_table
from .layout import QueueFiles, queues_of
from .log_reader import Progress

logger = logging.getLogger(__name__)

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_FILLER = ENTRY.pack(0, FILLER_SIZE, 0)


@dataclass(slots=True)
class RebuildReport:
    """What a rebuild has made."""

    root: str
    log_start: int = 0
    log_end: int = 0
    queue_count: int = 0
    index_file_count: int = 0
    dropped_bytes: int = 0  # A torn tail, which the next start would have cut as well.
    kept_offsets: list[tuple[str, int, int]] = field(default_factory=list)  # Of expired queues.
    topics_left_out: list[str] = field(default_factory=list)  # Deleted, as topics.json says.


def rebuild_store(
    config: StoreConfig, files: Files, clock: Clock, *, progress: Progress | None = None
) -> RebuildReport:
    """Build queues and index again; StoreLocked while a broker runs on the store.

    StoreDamaged where the log itself is damaged before its end: nothing has changed then.
    """
    root = config.store_path_root_dir
    aside = os.path.join(root, ".rebuild")
    new = os.path.join(aside, "new")
    lock = files.lock(os.path.join(root, "lock"))
    try:
        _remove_tree(aside)
        files.make_directory(new)
        report = RebuildReport(root)
        try:
            _build(config, files, clock, new, report, progress)
            _keep_offsets(config, files, new, report)
            _swap(files, root, new)
        finally:
            _remove_tree(aside)
        files.sync_directory(root)
        return report
    finally:
        lock.release()


def _build(
    config: StoreConfig,
    files: Files,
    clock: Clock,
    new: str,
    report: RebuildReport,
    progress: Progress | None,
) -> None:
    root = config.store_path_root_dir
    for name in ("checkpoint", "abort"):
        # What they say of the log decides what counts as damage, and what as a torn tail.
        if files.exists(os.path.join(root, name)):
            shutil.copyfile(os.path.join(root, name), os.path.join(new, name))
    if config.sums_enable and files.exists(sums_directory(root)):
        shutil.copytree(sums_directory(root), sums_directory(new))
    building = replace(
        config,
        store_path_root_dir=new,
        store_path_commit_log=config.commit_log_directory,
        enable_consume_queue_ext=False,  # Without the filters of its time nobody can make it again.
        transient_store_pool_enable=False,
    )
    with MessageStore.open(building, files, clock, progress=progress) as store:
        for topic in _deleted_topics(root, store):
            store.drop_topic(topic)
            files.remove_directory(os.path.join(new, "consumequeue", topic))
            report.topics_left_out.append(topic)
        report.log_start, report.log_end = store.log.start, store.log.appended
        report.dropped_bytes = store.recovery.dropped_bytes
        report.queue_count = len(store.queues.names)
        report.index_file_count = 0 if store.index is None else len(store.index.index_files)


def _deleted_topics(root: str, store: MessageStore) -> list[str]:
    """Topics with records in the log that nobody knows any more; they stay deleted."""
    table = read_table(os.path.join(root, "config", "topics.json"), TopicConfigTable)
    if not isinstance(table, TopicConfigTable):
        return []
    on_disk = {topic for topic, _ in queues_of(root)}
    return sorted(
        topic
        for topic in {topic for topic, _ in store.queues.names}
        if topic not in table.topics and topic not in on_disk and not is_system_topic(topic)
    )


def _keep_offsets(config: StoreConfig, files: Files, new: str, report: RebuildReport) -> None:
    root, file_bytes = config.store_path_root_dir, config.consume_queue_file_bytes
    built = set(queues_of(new))
    for topic, queue_id in queues_of(root):
        if (topic, queue_id) in built:
            continue
        end = QueueFiles(root, topic, queue_id, file_bytes).find_end() // ENTRY_BYTES
        if end and write_placeholder(files, new, topic, queue_id, end, file_bytes):
            report.kept_offsets.append((topic, queue_id, end))


def write_placeholder(
    files: Files, root: str, topic: str, queue_id: int, next_offset: int, file_bytes: int
) -> bool:
    """Make an empty queue that goes on at an offset; False where that is its beginning."""
    if next_offset <= 0:
        return False
    # The last entry before the offset must be there: the end is found behind it.
    start = (next_offset - 1) * ENTRY_BYTES // file_bytes * file_bytes
    directory = os.path.join(root, "consumequeue", topic, str(queue_id))
    files.make_directory(directory)
    path = os.path.join(directory, f"{start:020d}")
    files.create(path, file_bytes, reserve=False)
    region = files.map(path, file_bytes)
    used = next_offset * ENTRY_BYTES - start
    region.reserve(used)
    region.buffer[:used] = _FILLER * (used // ENTRY_BYTES)
    region.sync()
    files.sync_directory(directory)
    return True


def _swap(files: Files, root: str, new: str) -> None:
    for name in ("consumequeue", "index", "sums"):
        files.make_directory(os.path.join(new, name))
        files.make_directory(os.path.join(root, name))
        _sync_tree(files, os.path.join(new, name))
        exchange(os.path.join(new, name), os.path.join(root, name))
        files.sync_directory(root)
        files.sync_directory(new)
    ext = os.path.join(root, "consumequeue_ext")
    if files.exists(ext):
        # The new entries carry their tags themselves.
        files.rename(ext, os.path.join(new, "consumequeue_ext"))
    files.rename(os.path.join(new, "checkpoint"), os.path.join(root, "checkpoint"))
    files.sync_directory(root)
    files.remove(os.path.join(root, "abort"))
    files.sync_directory(root)


def exchange(path: str, target: str) -> None:
    """Swap the names of two directories, in one step where the system has one."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        rename = None
    if rename is not None:
        given = (os.fsencode(path), os.fsencode(target))
        if rename(_AT_FDCWD, given[0], _AT_FDCWD, given[1], _RENAME_EXCHANGE) == 0:
            return
        number = ctypes.get_errno()
        if number not in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP):
            raise store_error(target, "exchange", OSError(number, os.strerror(number)))
    # Two steps. In between the directory is missing, and recovery builds what was in it; the
    # offsets of queues whose messages have expired are the one thing that it would not find.
    aside = f"{path}.old"
    try:
        os.rename(target, aside)
        os.rename(path, target)
        os.rename(aside, path)
    except OSError as error:
        raise store_error(target, "exchange", error) from error


def _sync_tree(files: Files, top: str) -> None:
    for directory, _, _ in os.walk(top):
        files.sync_directory(directory)


def _remove_tree(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        try:
            shutil.rmtree(path)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise StoreUnreadable(path, f"cannot be removed: {error.strerror}") from error
