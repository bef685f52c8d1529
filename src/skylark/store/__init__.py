"""The log-structured engine: one commit log, everything else derived from it."""

from typing import TYPE_CHECKING

from ..lazy import front_door

if TYPE_CHECKING:
    from .append import Arrival as Arrival
    from .append import EntriesResult as EntriesResult
    from .append import PutEntries as PutEntries
    from .append import PutMessage as PutMessage
    from .append import PutResult as PutResult
    from .append import PutStatus as PutStatus
    from .config import FlushDiskType as FlushDiskType
    from .config import StoreConfig as StoreConfig
    from .consume_queue_ext import ExtUnit as ExtUnit
    from .files import DiskSpace as DiskSpace
    from .files import Files as Files
    from .files import OsFiles as OsFiles
    from .message_store import MessageStore as MessageStore
    from .reading import GetResult as GetResult
    from .reading import GetStatus as GetStatus
    from .reading import MessageFilter as MessageFilter
    from .reading import QueryResult as QueryResult
    from .recovery import RecoveryReport as RecoveryReport
else:
    __getattr__, __dir__ = front_door(
        globals(),
        {
            "append": (
                "Arrival",
                "EntriesResult",
                "PutEntries",
                "PutMessage",
                "PutResult",
                "PutStatus",
            ),
            "config": (
                "FlushDiskType",
                "StoreConfig",
            ),
            "consume_queue_ext": ("ExtUnit",),
            "files": (
                "DiskSpace",
                "Files",
                "OsFiles",
            ),
            "message_store": ("MessageStore",),
            "reading": (
                "GetResult",
                "GetStatus",
                "MessageFilter",
                "QueryResult",
            ),
            "recovery": ("RecoveryReport",),
        },
    )
