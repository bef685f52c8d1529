from collections.abc import Callable
from typing import Any

def bind(
    read_whole: Callable[[bytes, bool], int], read_double: Callable[[bytes], float]
) -> None: ...

class Scanner:
    def __init__(self, names: list[bytes], parts: list[tuple[Any, ...]]) -> None: ...
    def skip(
        self, entries: memoryview, at: int, end: int, buffer: memoryview, file_start: int
    ) -> int: ...
