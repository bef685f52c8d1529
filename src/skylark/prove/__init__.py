"""Proof: record what clients of a cluster see while it is broken on purpose, and judge it.

history     every event of a run            checkers/   what is looked for
workload    clients that record             promises    what a configuration guarantees
runner      a cluster of processes, with faults drawn from a seed
"""

from typing import TYPE_CHECKING

from ..lazy import front_door

if TYPE_CHECKING:
    from .anomalies import Anomaly as Anomaly
    from .history import Event as Event
    from .history import History as History
    from .history import Recorder as Recorder
    from .verdict import Figures as Figures
    from .verdict import Verdict as Verdict
    from .verdict import judge as judge
else:
    __getattr__, __dir__ = front_door(
        globals(),
        {
            "anomalies": ("Anomaly",),
            "history": ("Event", "History", "Recorder"),
            "verdict": ("Figures", "Verdict", "judge"),
        },
    )
