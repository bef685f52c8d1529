"""Types of the compiled twin; its functions are specified in append.py."""

from typing import Any

from .append import IndexCursor as IndexCursor
from .append import LogCursor as LogCursor
from .append import QueueCursor as QueueCursor
from .append import append_batch as append_batch
from .append import append_entries as append_entries
from .append import dispatch_records as dispatch_records
from .append import gather as gather
from .append import group_size as group_size
from .append import restore_slots as restore_slots
from .append import scan_records as scan_records

def bind(
    put_result: type,
    entries_result: type,
    arrival: type,
    gathered: type,
    put_ok: int,
    stops: tuple[Any, ...],
    crc32: Any,
    pure: dict[str, Any],
) -> None: ...
