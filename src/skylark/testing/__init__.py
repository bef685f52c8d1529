"""Simulated clocks, networks, disks and processes: what production meets at night, in a test.

The same seed gives the same run, whatever is injected. To test an application, take the fixtures of
pytest_plugin.py, or a MemoryBroker. To test a server, start with SimCluster, or with a SimLoop, a
SimNetwork and two hosts where one process is enough.

The names are loaded when they are first used: pytest loads the plugin in every run.
"""

from typing import TYPE_CHECKING

from ..lazy import front_door

if TYPE_CHECKING:
    from .broker import SimulatedBroker as SimulatedBroker
    from .checks import Outages as Outages
    from .checks import always as always
    from .checks import check_replay as check_replay
    from .checks import eventually as eventually
    from .clock import SimClock as SimClock
    from .cluster import NodeMain as NodeMain
    from .cluster import ProcessDied as ProcessDied
    from .cluster import SimCluster as SimCluster
    from .cluster import SimNode as SimNode
    from .disk_broker import DiskBroker as DiskBroker
    from .faults import Fault as Fault
    from .faults import FaultPlan as FaultPlan
    from .faults import inject as inject
    from .faults import minimise as minimise
    from .loop import SimLoop as SimLoop
    from .memory_broker import MemoryBroker as MemoryBroker
    from .memory_cluster import MemoryCluster as MemoryCluster
    from .memory_servers import Faults as Faults
    from .memory_servers import VirtualTime as VirtualTime
    from .network import Partition as Partition
    from .network import SimHost as SimHost
    from .network import SimNetwork as SimNetwork
    from .network import SimServer as SimServer
    from .timeline import Deadlock as Deadlock
    from .timeline import Livelock as Livelock
    from .timeline import OutOfTime as OutOfTime
    from .timeline import RealWorldRefused as RealWorldRefused
    from .timeline import SimulationError as SimulationError
    from .timeline import Timeline as Timeline
    from .trace import Trace as Trace
    from .transport import LinkConfig as LinkConfig
    from .transport import SimTransport as SimTransport
else:
    __getattr__, __dir__ = front_door(
        globals(),
        {
            "broker": ("SimulatedBroker",),
            "checks": (
                "Outages",
                "always",
                "check_replay",
                "eventually",
            ),
            "clock": ("SimClock",),
            "cluster": (
                "NodeMain",
                "ProcessDied",
                "SimCluster",
                "SimNode",
            ),
            "disk_broker": ("DiskBroker",),
            "faults": (
                "Fault",
                "FaultPlan",
                "inject",
                "minimise",
            ),
            "loop": ("SimLoop",),
            "memory_broker": ("MemoryBroker",),
            "memory_cluster": ("MemoryCluster",),
            "memory_servers": ("Faults", "VirtualTime"),
            "network": (
                "Partition",
                "SimHost",
                "SimNetwork",
                "SimServer",
            ),
            "timeline": (
                "Deadlock",
                "Livelock",
                "OutOfTime",
                "RealWorldRefused",
                "SimulationError",
                "Timeline",
            ),
            "trace": ("Trace",),
            "transport": (
                "LinkConfig",
                "SimTransport",
            ),
        },
    )
