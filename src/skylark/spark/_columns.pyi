"""Types of the compiled twin; it is specified in columns.py and segments.py."""

from collections.abc import Callable
from typing import Any

def build(
    data: bytes | bytearray | memoryview,
    at: int,
    start: int,
    end: int,
    columns: tuple[str, ...],
    tags: frozenset[bytes] | None,
    expand: Callable[[bytes, int], bytes | None],
    bytes_max: int,
) -> tuple[int, int, dict[str, Any]] | None: ...
def build_entries(
    entries: Any,
    at: int,
    stop: int,
    offset: int,
    log: Any,
    log_start: int,
    topic: bytes,
    queue_id: int,
    columns: tuple[str, ...],
    tags: frozenset[bytes] | None,
    hashes: frozenset[int] | None,
    expand: Callable[[bytes, int], bytes | None],
    wants: Callable[[bytes], bool] | None,
    bytes_max: int,
) -> tuple[int, int, int, dict[str, Any]]: ...
