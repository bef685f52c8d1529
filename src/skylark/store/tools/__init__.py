"""Tools for stores at rest or at work: check, rebuild, dump, backup, restore.

They work on a directory, not on a broker: on a store of ours or of RocketMQ's, whose file sizes
they find out by themselves. All but rebuild and restore leave the store as it is.
"""

from .backup import BackupReport, backup_store
from .check import check_store
from .dump import dump_index, dump_queue, dump_records
from .layout import detect_config, state_of
from .rebuild import RebuildReport, rebuild_store
from .report import CheckReport, Finding, StoreState
from .restore import RestoreReport, restore_store

__all__ = [
    "BackupReport",
    "CheckReport",
    "Finding",
    "RebuildReport",
    "RestoreReport",
    "StoreState",
    "backup_store",
    "check_store",
    "detect_config",
    "dump_index",
    "dump_queue",
    "dump_records",
    "rebuild_store",
    "restore_store",
    "state_of",
]
