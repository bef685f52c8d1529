"""SavedTable: a table as one JSON file, replaced whole.

    file                     body                      saved
    topics.json              TopicConfigTable          at each change
    subscriptionGroup.json   SubscriptionGroupTable    at each change
    consumerOffset.json      ConsumerOffsetTable       every 5 s, and at the end
    delayOffset.json         DelayOffsetTable          every 10 s, and at the end

The files are RocketMQ's, in both directions. A save is old or new after a crash, never a mix, and
the content before stays beside it as `.bak`. A file that cannot be read is replaced by its backup;
where both are damaged the start is refused, because an empty table would be worse than none.
"""

from __future__ import annotations

import logging
import os
from typing import Generic, Protocol, TypeVar

from ..errors import CorruptRecord, InvalidBody
from ..protocol.bodies import Body

logger = logging.getLogger(__name__)

FILE_BYTES_MAX = 256 << 20

_B = TypeVar("_B", bound=Body)


class SmallFiles(Protocol):
    """What is asked of the disk; skylark.store's Files does it."""

    def exists(self, path: str) -> bool: ...
    def read(self, path: str) -> bytes: ...
    def replace(self, path: str, content: bytes) -> None: ...
    def make_directory(self, path: str) -> None: ...


class SavedTable(Generic[_B]):
    """One file, and what is known of its content."""

    def __init__(self, path: str, files: SmallFiles, kind: type[_B]) -> None:
        self.path = path
        self._files = files
        self._kind = kind
        self._saved: bytes | None = None  # What the file holds, so that no save repeats it.

    def load(self) -> _B | None:
        """Read the file, or its backup; None where there is none; raises StoreError."""
        self._files.make_directory(os.path.dirname(self.path))
        problems = []
        for candidate in (self.path, f"{self.path}.bak"):
            if not self._files.exists(candidate):
                continue
            content = self._files.read(candidate)
            if not content.strip():
                problems.append(f"{candidate} is empty")
                continue
            try:
                body = self._kind.from_json(content, size_max=FILE_BYTES_MAX)
            except InvalidBody as error:
                problems.append(f"{candidate}: {error}")
                continue
            if candidate != self.path:
                logger.error("file=%s cannot be used, read %s instead", self.path, candidate)
            else:
                self._saved = content
            return body
        if problems:
            raise CorruptRecord(
                f"a table cannot be read: {'; '.join(problems)}; restore {self.path} from a "
                "backup, or remove it and its .bak to start without"
            )
        return None

    def encode(self, body: _B) -> bytes:
        """The content that a save of this body writes."""
        return body.to_json(pretty=True)

    def save(self, body: _B) -> None:
        """Replace the file; durable when this returns."""
        self.write(self.encode(body))

    def write(self, content: bytes) -> None:
        """Replace the file by what encode() gave; may run on another thread, one at a time."""
        if content != self._saved:
            self._files.replace(self.path, content)
            self._saved = content
