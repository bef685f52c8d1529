"""The durable timer: which messages wait for a moment of their own, and which are due."""

from .store import Snapshot as Snapshot
from .store import TimerStore as TimerStore
