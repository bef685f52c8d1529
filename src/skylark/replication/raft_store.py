"""StoreLog: the commit log as Raft's log; and what a member keeps beside it.

    config/raftMember.json    term, vote, and whether it may vote      replaced before it is said
    config/raftTerms.json     term → first byte                        replaced before that byte

Both are small, and change with a term only. Opening puts right what a crash left between two steps:
a term whose first byte is not in the log has not begun.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from typing import Any

from ..errors import (
    ConfigError,
    CorruptRecord,
    RemoteProtocolError,
    StoreDamaged,
    StoreError,
)
from ..model.topic import RAFT_TOPIC
from ..protocol.record import BLANK_MAGIC, decode_dispatch, decode_records
from ..store import MessageStore, PutMessage, PutStatus
from ..store import append as records
from ..store.append import Stop
from .epochs import SmallFiles
from .raft_log import Chunk, HardState, Terms

logger = logging.getLogger(__name__)

_MEMBER_FILE = "raftMember.json"
_TERMS_FILE = "raftTerms.json"
_NUMBER_MAX = 1 << 62


def member_file(root: str) -> str:
    """Where a member's state lies; a store that has it belongs to a group."""
    return os.path.join(root, "config", _MEMBER_FILE)


def require_no_group(root: str, files: SmallFiles) -> None:
    """Raise ConfigError where a store belongs to a group and its broker does not.

    What a broker adds by itself is in no term, and would part the members' logs unseen.
    """
    path = member_file(root)
    if files.exists(path):
        raise ConfigError(
            f"{root} is the store of a member of a Raft group: set enableDLegerCommitLog=true; or, "
            f"to take it out of its group for good, remove {path} and {_TERMS_FILE} beside it"
        )


class MemberState:
    """A member's term and vote on the disk."""

    def __init__(self, root: str, files: SmallFiles, *, group: str, own_id: str) -> None:
        self._path = member_file(root)
        self._files = files
        self._group = group
        self._id = own_id
        self._state: HardState | None = None
        self.log_end = 0  # How long the log was when this was written.

    def load(self) -> HardState | None:
        """What was saved last; None for a member that has nothing. Raises StoreError."""
        if not self._files.exists(self._path):
            return None
        try:
            found = json.loads(self._files.read(self._path))
            group, own_id = str(found["group"]), str(found["id"])
            vote = found["vote"]
            state = HardState(
                _number(found["term"]),
                None if vote is None else str(vote),
                bool(found["mayVote"]),
                _number(found["floor"]),
            )
            self.log_end = _number(found["logEnd"])
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptRecord(
                f"{self._path} cannot be read: {error}; move this store away and start with an "
                "empty one, which copies the log from the other members"
            ) from error
        if (group, own_id) != (self._group, self._id):
            raise CorruptRecord(
                f"{self._path}: this store is member {own_id!r} of group {group!r}, and not "
                f"{self._id!r} of {self._group!r}: correct dLegerGroup and dLegerSelfId, or start "
                "with an empty store"
            )
        self._state = state
        return state

    def lower(self, log_end: int) -> None:
        """The log is about to be cut: that it is shorter then must not look like a loss."""
        if self._state is not None and log_end < self.log_end:
            self.save(self._state, log_end)

    def save(self, state: HardState, log_end: int) -> None:
        """Replace it, durably; raises StoreError."""
        content = {
            "group": self._group,
            "id": self._id,
            "term": state.term,
            "vote": state.vote,
            "mayVote": state.may_vote,
            "floor": state.floor,
            "logEnd": log_end,
        }
        self._files.make_directory(os.path.dirname(self._path))
        self._files.replace(self._path, json.dumps(content).encode())
        self._state, self.log_end = state, log_end


def _number(value: Any) -> int:
    if not isinstance(value, int) or not 0 <= value < _NUMBER_MAX:
        raise ValueError(f"{value!r} is no number of a group")
    return value


class StoreLog:
    """A RaftLog that is a store's commit log."""

    def __init__(
        self,
        store: MessageStore,
        files: SmallFiles,
        *,
        store_host: bytes,
        now_ms: Callable[[], int],
        tail_bytes_max: int,
    ) -> None:
        """Read the terms; raises StoreError."""
        self._store = store
        self._files = files
        self._log = store.log
        self._file_bytes = store.config.mapped_file_size_commit_log
        self._store_host = store_host
        self._now_ms = now_ms
        self._tail_bytes_max = tail_bytes_max
        self._root = store.config.store_path_root_dir
        self._path = os.path.join(self._root, "config", _TERMS_FILE)
        # Called with where the log will end, before it is cut.
        self.before_cut: Callable[[int], None] = lambda position: None
        self.has_terms = files.exists(self._path)
        self.terms = Terms([(0, self.start)])
        if self.has_terms and not self.is_empty:
            self.terms = self._load()
            if self.terms.cut(self.last):
                self.save_terms()
        elif self.has_terms:
            self.save_terms()  # What the file says is of a log that is gone.

    def _load(self) -> Terms:
        try:
            items = json.loads(self._files.read(self._path))["terms"]
            entries = [(_number(item["term"]), _number(item["start"])) for item in items]
            if not entries or entries != sorted(set(entries)):
                raise ValueError("the terms are not in order")
            if [start for _, start in entries] != sorted(start for _, start in entries):
                raise ValueError("the terms are not in order")
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptRecord(
                f"{self._path} cannot be read: {error}; move this store away and start with an "
                "empty one, which copies the log from the other members"
            ) from error
        return Terms(entries)

    def save_terms(self) -> None:
        """Write the terms down, durably."""
        self.terms.prune(self.start)
        items = [{"term": term, "start": start} for term, start in self.terms.entries]
        self._files.make_directory(os.path.dirname(self._path))
        self._files.replace(self._path, json.dumps({"terms": items}).encode())
        self.has_terms = True

    def find_terms(self) -> None:
        """Learn the terms from the log, where the first record of each says so."""
        if self.is_empty:
            return
        log, at, blank = self._log, self.start, None
        entries = [(0, at)] if at == 0 else []
        while at < self.last and (found := log.buffer_at(at)) is not None:
            info = decode_dispatch(*found)
            if info is None:
                blank, at = at, at - found[1] + self._file_bytes
                continue
            if info.topic == RAFT_TOPIC:
                record = decode_records(bytes(found[0][found[1] : found[1] + info.size_bytes]))[0]
                entries.append((_number(json.loads(record.body)["term"]), blank or at))
            elif not entries:
                raise CorruptRecord(
                    f"{self._path} is missing, and the log begins in the middle of a term: move "
                    "this store away and start with an empty one"
                )
            blank, at = None, at + info.size_bytes
        self.terms = Terms(entries)
        self.save_terms()
        logger.warning("path=%s was missing, the terms are found again in the log", self._path)

    # What is there.

    @property
    def start(self) -> int:
        return self._log.start if self._log.mapped.files else 0

    @property
    def last(self) -> int:
        return self._log.appended if self._log.mapped.files else 0

    @property
    def is_empty(self) -> bool:
        return not self._log.mapped.files

    @property
    def may_lead(self) -> bool:
        return self._store.failure is None and not self._store.is_disk_full

    def term_at(self, position: int) -> int:
        return self.terms.at(position)

    def term_after(self, position: int) -> int:
        return self.terms.after(position)

    def stretch_end(self, position: int) -> int:
        end = self.terms.next_start(position)
        return self.last if end is None else end

    def end_of_term(self, term: int) -> tuple[int, int]:
        return self.terms.end_of(term, self.last)

    def read(self, position: int, size_max: int) -> Chunk:
        found = self._log.buffer_at(position)
        assert found is not None, f"position {position} is not kept"
        buffer, at = found
        file_start = position - at
        end = min(self.stretch_end(position), file_start + self._file_bytes)
        size = end - position
        if size > size_max:
            stop = at + size_max
            size = records.scan_records(buffer, file_start, at, stop, False, self._file_bytes)[0]
            size = size - at or self._size_of_record(buffer, at)
        return Chunk(position, position + size, self.terms.after(position), buffer[at : at + size])

    @staticmethod
    def _size_of_record(buffer: memoryview, at: int) -> int:
        return int.from_bytes(buffer[at : at + 4], "big")

    # What comes from a leader.

    def check(self, chunk: Chunk) -> Chunk:
        """Look at every record before anything is changed; raises RemoteProtocolError."""
        data, start = chunk.data, chunk.start
        left = self._file_bytes - start % self._file_bytes
        if len(data) > left:
            raise RemoteProtocolError(
                f"what it sends at {start} reaches beyond a file of {self._file_bytes} bytes: all "
                "members need the same mappedFileSizeCommitLog"
            )
        view = memoryview(data)
        size, why, stored_ms = records.scan_records(view, start, 0, len(view), True, len(view))
        if why is Stop.BLANK:
            blank = int.from_bytes(view[size : size + 4], "big")
            is_blank = int.from_bytes(view[size + 4 : size + 8], "big") == BLANK_MAGIC
            if not is_blank or blank != left - size or blank != len(view) - size:
                raise RemoteProtocolError(f"what it sends at {start + size} is a damaged record")
        elif why is not Stop.END:
            raise RemoteProtocolError(f"what it sends at {start + size} is a damaged record")
        return chunk._replace(stored_at_ms=stored_ms)

    def append(self, chunk: Chunk, since: int) -> None:
        assert since == self.last
        if chunk.term != self.terms.numbers[-1]:
            self.terms.begin(chunk.term, since)
            self.save_terms()
        data = memoryview(chunk.data)[since - chunk.start :]
        stored_ms = chunk.stored_at_ms if chunk.stored_at_ms >= 0 else None
        self._store.append_raw(since, data, stored_ms)

    def begin(self, position: int, term: int) -> None:
        if position % self._file_bytes:
            raise RemoteProtocolError(
                f"its log begins at {position}, in the middle of a file of {self._file_bytes} "
                "bytes: all members need the same mappedFileSizeCommitLog"
            )
        self.terms = Terms([(term, position)])
        self.save_terms()
        self._store.append_raw(position, b"")  # Sets the place.

    def truncate(self, position: int) -> None:
        self._keep_tail(position)
        self.before_cut(position)
        self._store.truncate(position)
        if self.terms.cut(position):
            self.save_terms()

    def _keep_tail(self, position: int) -> None:
        """Save what is given up; it was not agreed, and an operator may want it all the same."""
        tail = self.last - position
        if self._log.blank_end(position) == self.last:
            return
        if tail > self._tail_bytes_max:
            raise StoreDamaged(
                self._root,
                position,
                f"{tail} bytes would have to be given up for the leader's log",
                "move this store away and start with an empty one",
            )
        pieces = []
        at = position
        while at < position + tail:
            size = min(position + tail - at, self._file_bytes - at % self._file_bytes)
            piece = self._log.read(at, size)
            assert piece is not None
            pieces.append(bytes(piece))
            at += size
        folder = os.path.join(self._root, "diverged")
        path = os.path.join(folder, f"{position:020d}-{tail}")
        self._files.make_directory(folder)
        self._files.replace(path, b"".join(pieces))
        logger.warning(
            "%d bytes from %d on were never agreed and are given up; they are kept in %s",
            tail, position, path,
        )  # fmt: skip

    # What a leader writes.

    def begin_term(self, term: int, leader: str) -> bool:
        store = self._store
        if not self.may_lead:
            return False
        self._continue_queue()
        self.terms.begin(term, self.last)
        self.save_terms()
        body = json.dumps({"leader": leader, "term": term}).encode()
        host, now_ms = self._store_host, self._now_ms()
        message = PutMessage(RAFT_TOPIC, 0, body, b"", now_ms, host, host)
        was_replica, store.is_replica = store.is_replica, False
        try:
            status = store.put([message])[0].status
        except StoreError:
            store.is_replica = was_replica
            raise
        store.is_replica = was_replica
        if status is not PutStatus.PUT_OK:
            self.terms.cut(self.last)
            self.save_terms()
            logger.error("term=%d not begun: the store says %s", term, status.name)
            return False
        return True

    def _continue_queue(self) -> None:
        """Let the next term's record have the queue offset behind that of the last one.

        What is not agreed is not dispatched, so its queue does not know of it. No other queue needs
        this: nothing else is put before everything is agreed and dispatched.
        """
        for start in reversed(self.terms.starts):
            record = self._log.record(self._log.blank_end(start) or start)
            info = None if record is None else decode_dispatch(record)
            if info is not None and info.topic == RAFT_TOPIC:
                cursor = self._store.queues.queue(RAFT_TOPIC, 0).cursor
                cursor.next_offset = max(cursor.next_offset, info.queue_offset + 1)
                return
