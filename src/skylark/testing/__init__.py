"""Simulated clocks, networks, disks and processes: what production meets at night, in a test.

The same seed gives the same run, whatever is injected. Start with SimCluster, or with a SimLoop, a
SimNetwork and two hosts where one process is enough.
"""

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
from .faults import Fault as Fault
from .faults import FaultPlan as FaultPlan
from .faults import inject as inject
from .faults import minimise as minimise
from .loop import SimLoop as SimLoop
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
