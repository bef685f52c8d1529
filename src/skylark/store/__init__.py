"""The log-structured engine: one commit log, everything else derived from it."""

from .append import Arrival, PutMessage, PutResult, PutStatus
from .config import FlushDiskType, StoreConfig
from .consume_queue_ext import ExtUnit
from .files import DiskSpace, Files, OsFiles
from .message_store import GetResult, GetStatus, MessageFilter, MessageStore, QueryResult
from .recovery import RecoveryReport

__all__ = [
    "Arrival",
    "DiskSpace",
    "ExtUnit",
    "Files",
    "FlushDiskType",
    "GetResult",
    "GetStatus",
    "MessageFilter",
    "MessageStore",
    "OsFiles",
    "PutMessage",
    "PutResult",
    "PutStatus",
    "QueryResult",
    "RecoveryReport",
    "StoreConfig",
]
