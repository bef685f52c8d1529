"""Copies of the commit log: the master's side, the replica's side, and the stream between them."""

from typing import TYPE_CHECKING

from ..lazy import front_door

if TYPE_CHECKING:
    from .agreement import LogsDiffer as LogsDiffer
    from .agreement import find_agreement as find_agreement
    from .epochs import Epoch as Epoch
    from .epochs import EpochTable as EpochTable
    from .master import Follower as Follower
    from .master import Master as Master
    from .quorum import Quorum as Quorum
    from .replica import Replica as Replica
else:
    __getattr__, __dir__ = front_door(
        globals(),
        {
            "agreement": ("LogsDiffer", "find_agreement"),
            "epochs": ("Epoch", "EpochTable"),
            "master": ("Follower", "Master"),
            "quorum": ("Quorum",),
            "replica": ("Replica",),
        },
    )
