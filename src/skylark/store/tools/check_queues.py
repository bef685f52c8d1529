"""QueueCheck: consume queues as the log makes them, compared with the files piece by piece."""

from __future__ import annotations

import os
from dataclasses import dataclass

from ...protocol.bodies import TopicConfigTable
from ...protocol.record import DispatchInfo
from .. import append
from ..append import (
    ENTRY,
    ENTRY_BYTES,
    EXT_ADDRESS_MAX,
    FILLER_SIZE,
    SCHEDULE_TOPIC,
    QueueCursor,
    QueueTable,
    put_entry,
)
from ..config import StoreConfig
from .check_tables import read_table
from .layout import QueueFiles, queues_of
from .log_reader import LogReader
from .report import CheckReport, Finding, StoreState, rebuild_command

_CHUNK_ENTRIES = 200
_CHUNK_BYTES = _CHUNK_ENTRIES * ENTRY_BYTES
_SYSTEM_TOPICS = ("RMQ_SYS_", "SCHEDULE_TOPIC_XXXX", "TRANS_CHECK_MAX_TIME_TOPIC")


@dataclass(slots=True)
class _QueueState:
    files: QueueFiles
    cursor: QueueCursor
    first: int  # The byte position of the first entry that the log knows of.
    exists: bool
    finding: Finding | None = None
    wrong_count: int = 0
    missing_from: int = -1  # From here on the file has nothing.


class QueueCheck:
    """The queues as the log makes them, compared with the files as they grow."""

    def __init__(self, config: StoreConfig, log: LogReader, report: CheckReport) -> None:
        self._config = config
        self._root = config.store_path_root_dir
        self._log = log
        self._report = report
        self.table: QueueTable = {}
        self.dirty: list[QueueCursor] = []
        self._states: dict[tuple[str, int], _QueueState] = {}
        self._on_disk = set(queues_of(self._root))
        self._topics = _known_topics(self._root)
        self._forgives_gaps = False

    def forgive_gaps(self) -> None:
        """The log has a hole: queue offsets that are missing from here on are told with it."""
        self._forgives_gaps = True

    def newest_physical(self) -> int:
        """Where the newest record ends that is in a queue."""
        newest = 0
        for topic, queue_id in self._on_disk:
            files = QueueFiles(self._root, topic, queue_id, self._config.consume_queue_file_bytes)
            end = files.find_end()
            if end > files.start:
                last = files.read(end - ENTRY_BYTES, ENTRY_BYTES)
                physical_offset, size, _ = ENTRY.unpack(last)
                if size != FILLER_SIZE:
                    newest = max(newest, physical_offset + size)
        return newest

    def cursor_of(self, topic: str, queue_id: int) -> QueueCursor | None:
        """Where a queue's next entry goes."""
        return self.table.get(topic, {}).get(queue_id)

    def put(self, info: DispatchInfo, code: int) -> None:
        """Take a record that the fast path left: a new queue, a full piece, a gap, a new life."""
        state = self._states.get((info.topic, info.queue_id))
        at = info.queue_offset * ENTRY_BYTES
        if state is None:
            state = self._begin(info, at)
        cursor = state.cursor
        if info.physical_offset + info.size_bytes <= cursor.max_physical:
            return
        if at < cursor.write_at:
            # The topic was deleted, and made again: what the queue held before is of no interest.
            state.finding, state.wrong_count, state.missing_from = None, 0, -1
            state.first = at
            self._turn_to(state, at)
        elif at > cursor.write_at:
            self._compare(state)
            if not self._forgives_gaps:
                path, place = self._log.place_of(info.physical_offset)
                self._report.findings.append(
                    Finding(
                        path,
                        place,
                        f"topic {info.topic} queue {info.queue_id}: messages"
                        f" {cursor.write_at // ENTRY_BYTES} to {info.queue_offset - 1} are not in"
                        " the log",
                        "restore the log from a replica or a backup; a rebuild leaves a gap",
                    )
                )
            self._turn_to(state, at)
        elif at + ENTRY_BYTES > cursor.limit:
            self._compare(state)
            self._turn_to(state, at)
        put_entry(cursor, info.physical_offset, info.size_bytes, code, self.dirty)

    def _begin(self, info: DispatchInfo, at: int) -> _QueueState:
        key = (info.topic, info.queue_id)
        cursor = append.QueueCursor(info.topic, info.queue_id)
        files = QueueFiles(
            self._root, info.topic, info.queue_id, self._config.consume_queue_file_bytes
        )
        state = _QueueState(files, cursor, at, key in self._on_disk)
        self._states[key] = state
        self.table.setdefault(info.topic, {})[info.queue_id] = cursor
        self._turn_to(state, at)
        return state

    @staticmethod
    def _turn_to(state: _QueueState, at: int) -> None:
        cursor = state.cursor
        cursor.buffer = memoryview(bytearray(_CHUNK_BYTES))
        cursor.file_start = cursor.write_at = at
        cursor.limit = at + _CHUNK_BYTES

    def _compare(self, state: _QueueState) -> None:
        """Hold the piece that was made from the log against the file."""
        cursor = state.cursor
        assert cursor.buffer is not None
        expected = cursor.buffer[: cursor.write_at - cursor.file_start]
        self._report.queue_entry_count += len(expected) // ENTRY_BYTES
        if not state.exists or state.missing_from >= 0:
            return
        found = state.files.read(cursor.file_start, len(expected))
        if found == expected or self._has_expired(state):
            return
        for number in range(len(expected) // ENTRY_BYTES):
            at = number * ENTRY_BYTES
            wanted = ENTRY.unpack_from(expected, at)
            if len(found) < at + ENTRY_BYTES or not any(found[at : at + ENTRY_BYTES]):
                state.missing_from = cursor.file_start + at
                return
            entry = ENTRY.unpack_from(found, at)
            if entry == wanted or (entry[:2] == wanted[:2] and _may_differ(cursor, entry[2])):
                continue
            state.wrong_count += 1
            if state.finding is None:
                path, place = state.files.path_of(cursor.file_start + at)
                offset = (cursor.file_start + at) // ENTRY_BYTES
                state.finding = Finding(
                    path,
                    place,
                    f"entry {offset} says {_entry_text(entry)}, the log {_entry_text(wanted)}",
                    rebuild_command(self._root),
                )

    def _has_expired(self, state: _QueueState) -> bool:
        """Whether a running broker's retention has taken the file of the current piece."""
        if self._report.state is not StoreState.RUNNING:
            return False
        files = QueueFiles(
            self._root, state.files.topic, state.files.queue_id, state.files.file_bytes
        )
        return bool(files.starts) and files.start > state.cursor.file_start

    def finish(self) -> None:
        """Compare what is left, and look for what the log does not know."""
        self._report.queue_count = len(self._states)
        for key, state in sorted(self._states.items()):
            self._compare(state)
            self._judge(key, state)
        for topic, queue_id in sorted(self._on_disk - self._states.keys()):
            files = QueueFiles(self._root, topic, queue_id, self._config.consume_queue_file_bytes)
            self._report.queue_count += 1
            self._check_strangers(files, files.start, files.find_end())

    def _judge(self, key: tuple[str, int], state: _QueueState) -> None:
        report, cursor, files = self._report, state.cursor, state.files
        topic, queue_id = key
        if not state.exists:
            self._judge_absent(topic, queue_id)
            return
        if state.missing_from >= 0:
            count = (cursor.write_at - state.missing_from) // ENTRY_BYTES
            path, place = files.path_of(state.missing_from)
            is_tail = not any(files.read(state.missing_from, files.file_bytes))
            if report.state is StoreState.CRASHED and is_tail:
                report.notes.append(
                    f"topic {topic} queue {queue_id} lacks {count} entries: the next start builds"
                    " them"
                )
            else:
                report.findings.append(
                    Finding(
                        path,
                        place,
                        f"{count} entries are missing from {state.missing_from // ENTRY_BYTES} on",
                        rebuild_command(self._root),
                    )
                )
        if state.finding is not None:
            more = f", and {state.wrong_count - 1} more" if state.wrong_count > 1 else ""
            report.findings.append(
                Finding(
                    state.finding.path,
                    state.finding.at,
                    state.finding.problem + more,
                    state.finding.next_step,
                )
            )
        self._check_sizes(files)
        self._check_strangers(files, files.start, state.first)
        if state.missing_from < 0:
            self._check_behind(files, cursor.write_at)

    def _judge_absent(self, topic: str, queue_id: int) -> None:
        is_known = self._topics is None or topic in self._topics or is_system_topic(topic)
        text = f"topic {topic} queue {queue_id} has messages in the log and no consume queue"
        if not is_known:
            self._report.notes.append(f"{text}: the topic is not in topics.json, so it was deleted")
        elif self._report.state is StoreState.CRASHED:
            self._report.notes.append(f"{text}: the next start builds it")
        else:
            self._report.findings.append(
                Finding(
                    os.path.join(self._root, "consumequeue", topic, str(queue_id)),
                    0,
                    f"is missing; {text}",
                    rebuild_command(self._root),
                )
            )

    def _check_sizes(self, files: QueueFiles) -> None:
        for start in files.starts:
            path, _ = files.path_of(start)
            size = os.stat(path).st_size if os.path.exists(path) else files.file_bytes
            if size != files.file_bytes:
                self._report.findings.append(
                    Finding(
                        path,
                        size,
                        f"is {size} bytes long, expected {files.file_bytes}",
                        rebuild_command(self._root),
                    )
                )

    def _check_strangers(self, files: QueueFiles, first: int, end: int) -> None:
        """Entries that the log does not account for must be of records that it has dropped."""
        for position, (physical_offset, size, _) in files.entries(first):
            if position >= end:
                return
            if size != FILLER_SIZE and not 0 <= physical_offset < self._log.start:
                self._tell_stranger(files, position, physical_offset)
                return

    def _check_behind(self, files: QueueFiles, end: int) -> None:
        """After the last entry there is nothing, or what is newer than this check."""
        report = self._report
        if report.state is StoreState.RUNNING:
            return
        position = files.first_written(end)
        if position is None:
            return
        entry = files.read(position, ENTRY_BYTES).ljust(ENTRY_BYTES, b"\0")
        physical_offset, _, _ = ENTRY.unpack(entry)
        if report.state is StoreState.CRASHED:
            report.notes.append(
                f"topic {files.topic} queue {files.queue_id} is ahead of the log: the next start"
                " cuts it"
            )
        else:
            self._tell_stranger(files, position, physical_offset)

    def _tell_stranger(self, files: QueueFiles, position: int, physical_offset: int) -> None:
        path, place = files.path_of(position)
        self._report.findings.append(
            Finding(
                path,
                place,
                f"entry {position // ENTRY_BYTES} points to {physical_offset}, where the log has"
                " no message of this queue",
                rebuild_command(self._root),
            )
        )

    def end_of(self, topic: str, queue_id: int) -> int | None:
        """The offset after a queue's last message, as far as log and files know; None: no queue."""
        ends = []
        state = self._states.get((topic, queue_id))
        if state is not None:
            ends.append(state.cursor.write_at // ENTRY_BYTES)
        if (topic, queue_id) in self._on_disk:
            files = QueueFiles(self._root, topic, queue_id, self._config.consume_queue_file_bytes)
            ends.append(files.find_end() // ENTRY_BYTES)
        return max(ends, default=None)


def is_system_topic(topic: str) -> bool:
    """Whether a broker uses a topic without its being in topics.json."""
    return topic.startswith(_SYSTEM_TOPICS)


def _may_differ(cursor: QueueCursor, code: int) -> bool:
    # An address in the ext file, or a delivery time made with other delay levels.
    return code <= EXT_ADDRESS_MAX or cursor.topic == SCHEDULE_TOPIC


def _entry_text(entry: tuple[int, int, int]) -> str:
    return f"offset {entry[0]} size {entry[1]} tag code {entry[2]}"


def _known_topics(root: str) -> set[str] | None:
    table = read_table(os.path.join(root, "config", "topics.json"), TopicConfigTable)
    return set(table.topics) if isinstance(table, TopicConfigTable) else None
