"""What a copy of a message may keep of its properties: those that its application has set.

A message is read with all of them, as every client shows them: its id, tag and keys, the cluster
it came to, how often it was tried. A message that is written has its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .rows import OWN_PROPERTIES

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession

NAME = "user_properties"
_TYPE = "map<string, string>"


def user_properties(column: str = "properties") -> Column:
    """A column of properties without those that the system sets itself."""
    from pyspark.sql import functions as F

    return F.expr(_without_own(column))


def make_known(spark: SparkSession) -> None:
    """Let SQL of a session call user_properties(properties), where that is not a name yet."""
    if not spark.catalog.functionExists(NAME):
        spark.sql(
            f"create temporary function {NAME}(properties {_TYPE}) returns {_TYPE} "
            f"return {_without_own('properties')}"
        )


def _without_own(column: str) -> str:
    names = ", ".join(f"'{name}'" for name in sorted(OWN_PROPERTIES))
    return f"map_filter({column}, (name, value) -> name not in ({names}))"
