"""Replica: appends what the master sends, and nothing that is not a sound record.

A push is any stretch of bytes, so a record may come in several. What is not whole yet waits in
memory; what is whole is checked (its checksum, and that it says of itself that it lies here) and
only then appended. So the log of a replica always ends after a record, a crash leaves nothing to
cut away but torn pages, and bytes of another history never enter it.

    # appended <= received; appended is what may be reported, with SYNC_FLUSH only as far as flushed
"""

from __future__ import annotations

import struct

from ..errors import RemoteProtocolError
from ..protocol.record import BLANK_MAGIC, MAGIC
from ..store import MessageStore
from ..store import append as records
from ..store.append import Stop
from .stream import Push

_HEAD = struct.Struct(">iI")


class Replica:
    """The copy of a master's log in a store; no sockets, no waiting."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._file_bytes = store.config.mapped_file_size_commit_log
        self._pending = bytearray()
        self._wanted = 1  # Fewer bytes than this need not be looked at.
        self.received_bytes = 0
        self.master_end = 0  # How far the master's log is known to go.

    @property
    def appended(self) -> int:
        """Where the log ends; always after a record."""
        return self._store.log.appended

    @property
    def confirmable(self) -> int:
        """What the master may be told that we have."""
        log = self._store.log
        return log.flushed if self._store.config.is_sync_flush else log.appended

    @property
    def is_empty(self) -> bool:
        """Whether there is no log yet, and any place will do to begin."""
        return not self._store.log.mapped.files

    def begin(self) -> None:
        """A new connection: it repeats what was not appended."""
        self._pending.clear()
        self._wanted = 1

    def apply(self, push: Push) -> None:
        """Take a push; raises RemoteProtocolError where it does not continue our log."""
        offset, data = push
        expected = self.appended + len(self._pending)
        if self.is_empty and not self._pending:
            if data and offset % self._file_bytes:
                raise RemoteProtocolError(
                    f"the log would begin at {offset}, in the middle of a file of "
                    f"{self._file_bytes} bytes: both need the same mappedFileSizeCommitLog"
                )
            if data:
                self._store.append_raw(offset, b"")  # Sets the place.
        elif offset != expected:
            raise RemoteProtocolError(f"it sends the log from {offset}, ours goes on at {expected}")
        self.master_end = max(self.master_end, offset + len(data))
        self.received_bytes += len(data)
        self._pending += data
        if len(self._pending) >= self._wanted:
            self._take_whole_records()

    def _take_whole_records(self) -> None:
        pending = memoryview(bytes(self._pending))
        self._wanted = 1
        while pending:
            at = self.appended
            left = self._file_bytes - at % self._file_bytes
            stop = min(len(pending), left)
            size, why, stored_ms = records.scan_records(pending, at, 0, stop, True, stop)
            if size:
                self._store.append_raw(at, pending[:size], stored_ms)
                pending = pending[size:]
            if why is Stop.END:
                continue
            wanted = self._size_of_next(pending)
            if wanted > len(pending):
                self._wanted = wanted
                break
            if why is not Stop.BLANK:
                raise RemoteProtocolError(f"what it sends at {self.appended} is a damaged record")
            self._store.append_raw(self.appended, pending[:wanted])
            pending = pending[wanted:]
        self._pending = bytearray(pending)

    def _size_of_next(self, pending: memoryview) -> int:
        """How many bytes the record has that begins here; it may not be whole yet."""
        at = self.appended
        if len(pending) < _HEAD.size:
            return len(pending) + 1
        size, magic = _HEAD.unpack_from(pending)
        left = self._file_bytes - at % self._file_bytes
        is_sound = size == left if magic == BLANK_MAGIC else magic == MAGIC and 48 < size <= left
        if not is_sound:
            raise RemoteProtocolError(
                f"what it sends at {at} is no record: the logs part before, or the brokers differ "
                "in mappedFileSizeCommitLog"
            )
        return int(size)
