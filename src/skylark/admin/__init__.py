"""The admin layer: what operators do and ask, as typed coroutines."""

from typing import TYPE_CHECKING

from ..lazy import front_door

if TYPE_CHECKING:
    from .client import AdminClient as AdminClient
    from .client import connect as connect
    from .figures import BrokerFigures as BrokerFigures
    from .figures import FoundMessage as FoundMessage
    from .figures import GroupFigures as GroupFigures
    from .figures import GroupMember as GroupMember
    from .figures import GroupSummary as GroupSummary
    from .figures import MessageTrack as MessageTrack
    from .figures import OffsetChange as OffsetChange
    from .figures import QueueFigures as QueueFigures
    from .figures import QueueLag as QueueLag
    from .figures import TopicFigures as TopicFigures
    from .figures import TopicKind as TopicKind
    from .figures import TopicPlace as TopicPlace
    from .figures import TopicSummary as TopicSummary
    from .figures import TrackState as TrackState
    from .groups import NEWEST as NEWEST
    from .growth import GrownTopic as GrownTopic
    from .growth import GrowthPlan as GrowthPlan
    from .growth import Planned as Planned
    from .growth import PlannedGroup as PlannedGroup
    from .growth import PlannedTopic as PlannedTopic
    from .leftovers import DrainProgress as DrainProgress
    from .leftovers import Unread as Unread
    from .raft_figures import RaftFigures as RaftFigures
    from .rolling import RestartCheck as RestartCheck
    from .rolling import RestartEvent as RestartEvent
    from .rolling import Step as Step
    from .timers import AddedRepeat as AddedRepeat
    from .timers import WaitingTimer as WaitingTimer
    from .topology import BrokerGroup as BrokerGroup
    from .topology import ClusterStatus as ClusterStatus
    from .topology import MemberStatus as MemberStatus
    from .topology import NameServerStatus as NameServerStatus
    from .topology import Problem as Problem
    from .transactions import PendingTransaction as PendingTransaction
    from .transactions import TransactionFigures as TransactionFigures
else:
    __getattr__, __dir__ = front_door(
        globals(),
        {
            "leftovers": ("DrainProgress", "Unread"),
            "growth": ("GrowthPlan", "GrownTopic", "Planned", "PlannedGroup", "PlannedTopic"),
            "rolling": ("RestartCheck", "RestartEvent", "Step"),
            "topology": (
                "BrokerGroup",
                "ClusterStatus",
                "MemberStatus",
                "NameServerStatus",
                "Problem",
            ),
            "raft_figures": ("RaftFigures",),
            "client": ("AdminClient", "connect"),
            "groups": ("NEWEST",),
            "figures": (
                "BrokerFigures",
                "FoundMessage",
                "GroupFigures",
                "GroupMember",
                "GroupSummary",
                "MessageTrack",
                "OffsetChange",
                "QueueFigures",
                "QueueLag",
                "TopicFigures",
                "TopicKind",
                "TopicPlace",
                "TopicSummary",
                "TrackState",
            ),
            "timers": ("AddedRepeat", "WaitingTimer"),
            "transactions": ("PendingTransaction", "TransactionFigures"),
        },
    )
