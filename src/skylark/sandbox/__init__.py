"""Code of users, in processes that can do nothing but compute."""

from typing import TYPE_CHECKING

from ..lazy import front_door

if TYPE_CHECKING:
    from .batches import Candidate as Candidate
    from .batches import encode_batch as encode_batch
    from .worker import OsWorkers as OsWorkers
    from .worker import PredicateFailed as PredicateFailed
    from .worker import Worker as Worker
    from .worker import WorkerLimits as WorkerLimits
    from .worker import Workers as Workers
else:
    __getattr__, __dir__ = front_door(
        globals(),
        {
            "batches": ("Candidate", "encode_batch"),
            "worker": ("OsWorkers", "PredicateFailed", "Worker", "WorkerLimits", "Workers"),
        },
    )
