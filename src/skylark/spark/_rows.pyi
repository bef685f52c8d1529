"""Types of the compiled twin; it is specified in rows.py."""

from typing import Any

class Columns:
    rows: int

    def __init__(self, rows: int, body: Any, tag: Any, keys: Any) -> None: ...
    def encode(
        self, start: int, bytes_max: int, mark: bytes, counter: int
    ) -> tuple[bytes, int]: ...
