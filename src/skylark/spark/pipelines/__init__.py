"""Pipelines: sources, steps and sinks as a YAML or Python file. Importing it starts no Spark."""

from typing import TYPE_CHECKING

from ...lazy import front_door

if TYPE_CHECKING:
    from .pipeline import Pipeline as Pipeline
    from .pipeline import load as load
    from .pipeline import running as running
    from .runs import Run as Run
    from .spec import Spec as Spec
    from .state import RunDirectory as RunDirectory
    from .state import RunState as RunState
else:
    __getattr__, __dir__ = front_door(
        globals(),
        {
            "pipeline": ("Pipeline", "load", "running"),
            "runs": ("Run",),
            "spec": ("Spec",),
            "state": ("RunDirectory", "RunState"),
        },
    )
