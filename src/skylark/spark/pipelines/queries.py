"""Queries: whether the SQL of a step is one, asked of Spark's parser before anything of it runs.

`spark.sql` runs a command at once, also where a pipeline is only validated: it would write, create
or drop. A step is a query, which runs when its sink does.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOGICAL = "org.apache.spark.sql.catalyst.plans.logical."
_COMMANDS = ("Command", "ParsedStatement", "InsertIntoDir", "ExecutableDuringAnalysis")
_BY_NAME = frozenset({"UnresolvedExecuteImmediate"})  # It has no kind in common with the others.


def command_in(spark: SparkSession, query: str) -> str | None:
    """The command that it is, or has in it; raises Spark's own error for what is no SQL."""
    jvm: Any = getattr(spark, "_jvm", None)
    if jvm is None:  # Spark Connect: only the server has a parser.
        return None
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    kinds = [loader.loadClass(_LOGICAL + name) for name in _COMMANDS]
    plan: Any = spark._jsparkSession.sessionState().sqlParser().parsePlan(query)
    for node in _nodes(plan):
        name = str(node.getClass().getSimpleName())
        if name in _BY_NAME or any(kind.isInstance(node) for kind in kinds):
            return name
    return None


def _nodes(plan: Any) -> Iterator[Any]:
    yield plan
    below = plan.children()
    for number in range(below.size()):
        yield from _nodes(below.apply(number))
