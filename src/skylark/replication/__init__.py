"""Copies of the commit log: a master's and its replicas', or those of a Raft group."""

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
    from .raft_config import RaftConfig as RaftConfig
    from .raft_group import RaftGroup as RaftGroup
    from .raft_quorum import RaftQuorum as RaftQuorum
    from .replica import Replica as Replica
else:
    __getattr__, __dir__ = front_door(
        globals(),
        {
            "agreement": ("LogsDiffer", "find_agreement"),
            "epochs": ("Epoch", "EpochTable"),
            "master": ("Follower", "Master"),
            "quorum": ("Quorum",),
            "raft_config": ("RaftConfig",),
            "raft_group": ("RaftGroup",),
            "raft_quorum": ("RaftQuorum",),
            "replica": ("Replica",),
        },
    )
