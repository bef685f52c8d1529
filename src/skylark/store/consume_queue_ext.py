"""ConsumeQueueExt: what a consume queue entry has no room for.

With enableConsumeQueueExt every entry's tag code is an address in here, and the unit at that
address holds the tag hash, the store time and a bitmap of the filters that the message passes.

    unit, big-endian
    at   size  field
    0    2     size of the unit; -1: the file ends here, go on in the next
    2    8     tag hash
    10   8     store time
    18   2     bitmap size in bytes
    20   n     bitmap, bit i in byte i / 8 with mask 1 << (i % 8)

    address = -2**63 + offset; anything above -2**31 - 1 is no address but a tag hash

The last 4 bytes of a file stay free for the end mark. Nothing is lost by losing this: without a
unit the filters look at the message itself. See docs/formats/consume-queue-ext.md.
"""

from __future__ import annotations

import os
import struct
from typing import NamedTuple

from .append import EXT_ADDRESS_MAX
from .files import Files, Region
from .mapped_file import MappedFileQueue, RegionCache

_UNIT = struct.Struct(">hqqh")
_END = struct.Struct(">h")
_END_ROOM = 4
_ADDRESS_BASE = -(2**63)
UNIT_BYTES_MAX = 32_767
_RESERVE_AHEAD = 256 << 10
assert _UNIT.size == 20


class ExtUnit(NamedTuple):
    """The long form of a tag code."""

    tag_hash: int
    stored_at_ms: int
    bitmap: bytes


def is_address(tag_code: int) -> bool:
    """Whether a tag code is the address of a unit rather than a hash."""
    return tag_code <= EXT_ADDRESS_MAX


class ConsumeQueueExt:
    """The units of one queue."""

    def __init__(
        self,
        files: Files,
        cache: RegionCache,
        root: str,
        topic: str,
        queue_id: int,
        file_bytes: int,
        *,
        writable: bool = True,
    ) -> None:
        self._files = files
        directory = os.path.join(root, topic, str(queue_id))
        self.mapped = MappedFileQueue(files, cache, directory, file_bytes, writable=writable)
        self._writable = writable
        self.write_at = 0
        self._dirty_from = 0

    def load(self) -> None:
        """Find the files and the end, walking the units."""
        self.mapped.load()
        self.write_at = self.mapped.start
        for file in self.mapped.files:
            self.write_at = file.start + self._walk(file.buffer)
            if not self._ends(file.buffer, self.write_at - file.start):
                break
        if self._writable:
            self.mapped.remove_after(max(self.write_at, self.mapped.start + 1))
            self.mapped.doubt_names()
        self._dirty_from = self.write_at

    def _walk(self, buffer: memoryview) -> int:
        at = 0
        while at + _UNIT.size <= len(buffer) - _END_ROOM:
            size, _, _, bitmap_size = _UNIT.unpack_from(buffer, at)
            if size < _UNIT.size or size != _UNIT.size + bitmap_size:
                break
            if at + size > len(buffer) - _END_ROOM:
                break
            at += size
        return at

    @staticmethod
    def _ends(buffer: memoryview, at: int) -> bool:
        return at + 2 <= len(buffer) and _END.unpack_from(buffer, at)[0] == -1

    def put(self, unit: ExtUnit) -> int | None:
        """Store a unit, and return its address; None if it is too long."""
        size = _UNIT.size + len(unit.bitmap)
        file_bytes = self.mapped.file_bytes
        if size > min(UNIT_BYTES_MAX, file_bytes - _END_ROOM):
            return None
        if not self.mapped.files:
            self._files.make_directory(self.mapped.directory)
            self.mapped.add(self.write_at - self.write_at % file_bytes, reserve=False)
        file = self.mapped.at(self.write_at)
        if file is None:
            file = self.mapped.add(self.mapped.end, reserve=False)
            self.write_at = file.start
        at = self.write_at - file.start
        if at + size > file_bytes - _END_ROOM:
            self._reserve(file.region, at + 2)
            _END.pack_into(file.buffer, at, -1)
            self.write_at = file.end
            return self.put(unit)
        self._reserve(file.region, at + size)
        _UNIT.pack_into(file.buffer, at, size, unit.tag_hash, unit.stored_at_ms, len(unit.bitmap))
        file.buffer[at + _UNIT.size : at + size] = unit.bitmap
        address = _ADDRESS_BASE + self.write_at
        self.write_at += size
        return address

    @staticmethod
    def _reserve(region: Region, end: int) -> None:
        region.reserve(min(region.size_bytes, -(-end // _RESERVE_AHEAD) * _RESERVE_AHEAD))

    def get(self, address: int) -> ExtUnit | None:
        """The unit at an address; None if it is gone, torn or no address at all."""
        offset = address - _ADDRESS_BASE
        file = self.mapped.at(offset) if is_address(address) else None
        if file is None or offset >= self.write_at:
            return None
        at = offset - file.start
        if at + _UNIT.size > file.size_bytes:
            return None
        size, tag_hash, stored_at_ms, bitmap_size = _UNIT.unpack_from(file.buffer, at)
        if size != _UNIT.size + bitmap_size or at + size > file.size_bytes or bitmap_size < 0:
            return None
        return ExtUnit(tag_hash, stored_at_ms, bytes(file.buffer[at + _UNIT.size : at + size]))

    def dirty_regions(self) -> list[Region]:
        """The regions with units that may not be on the disk."""
        dirty_from, self._dirty_from = self._dirty_from, self.write_at
        return [
            file.region
            for file in self.mapped.files
            if file.end > dirty_from and file.start < self.write_at
        ]

    def truncate(self, end_address: int) -> None:
        """Forget the units from an address on."""
        end = max(self.mapped.start, min(self.write_at, end_address - _ADDRESS_BASE))
        self.mapped.remove_after(end)
        self.write_at = end
        if file := self.mapped.at(end):
            file.region.reserve(file.size_bytes)
            file.region.zero(end - file.start, file.size_bytes)
            file.region.sync()

    def remove_before(self, address: int) -> int:
        """Delete leading files whose units all lie before an address, never the last."""
        count = 0
        offset = address - _ADDRESS_BASE
        while len(self.mapped) > 1 and self.mapped.files[0].end <= offset:
            self.mapped.detach_first().remove()
            count += 1
        if count:
            self._files.sync_directory(self.mapped.directory)
        return count

    def destroy(self) -> None:
        """Delete all files."""
        self.mapped.remove_after(0)
        self._files.remove_directory(self.mapped.directory)
        self.write_at = 0

    def close(self) -> None:
        """Unmap all."""
        self.mapped.close()
