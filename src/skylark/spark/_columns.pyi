"""Types of the compiled twin; it is specified in columns.py."""

from typing import Any

def build(
    data: bytes | memoryview,
    start: int,
    end: int,
    columns: tuple[str, ...],
    tags: frozenset[bytes] | None,
) -> tuple[int, dict[str, Any]] | None: ...
