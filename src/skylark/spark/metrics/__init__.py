"""Metrics of a cluster, minute by minute, counted by Spark and read without it.

skylark pipeline metrics --table lake/metrics

from skylark.spark.metrics import read_metrics
for figure in read_metrics("lake/metrics", since_ms, until_ms, metric="latency"): ...
"""

from typing import TYPE_CHECKING

from ...lazy import front_door

if TYPE_CHECKING:
    from .job import MetricsJob as MetricsJob
    from .reading import Figure as Figure
    from .reading import read_metrics as read_metrics
    from .rows import Latency as Latency
    from .rows import Metric as Metric
else:
    __getattr__, __dir__ = front_door(
        globals(),
        {
            "job": ("MetricsJob",),
            "reading": ("Figure", "read_metrics"),
            "rows": ("Latency", "Metric"),
        },
    )
