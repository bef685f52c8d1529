"""The Spark layer: topics as DataFrames. Importing it imports neither pyspark nor Java."""

from typing import TYPE_CHECKING

from ..lazy import front_door

if TYPE_CHECKING:
    from .java import JavaRuntime as JavaRuntime
    from .java import find_java as find_java
    from .java import java_environment as java_environment
    from .offsets import DataLoss as DataLoss
    from .sessions import register as register
    from .sessions import session as session
    from .source import SkylarkDataSource as SkylarkDataSource
else:
    __getattr__, __dir__ = front_door(
        globals(),
        {
            "java": ("JavaRuntime", "find_java", "java_environment"),
            "offsets": ("DataLoss",),
            "sessions": ("register", "session"),
            "source": ("SkylarkDataSource",),
        },
    )
