"""Types of the compiled twin; it is specified in sync_thread.py."""

from .sync_thread import PureSyncThread

class SyncThread(PureSyncThread): ...
