"""The Spark layer: topics as DataFrames. Importing it imports neither pyspark nor Java."""

from typing import TYPE_CHECKING

from ..lazy import front_door

if TYPE_CHECKING:
    from .java import JavaRuntime as JavaRuntime
    from .java import find_java as find_java
    from .java import java_environment as java_environment
    from .listener import Watch as Watch
    from .listener import watch as watch
    from .offsets import DataLoss as DataLoss
    from .own_properties import user_properties as user_properties
    from .python import python_environment as python_environment
    from .reports import QueryReport as QueryReport
    from .sessions import register as register
    from .sessions import session as session
    from .source import SkylarkDataSource as SkylarkDataSource
    from .streams import active as active
    from .streams import start as start
else:
    __getattr__, __dir__ = front_door(
        globals(),
        {
            "java": ("JavaRuntime", "find_java", "java_environment"),
            "listener": ("Watch", "watch"),
            "offsets": ("DataLoss",),
            "own_properties": ("user_properties",),
            "python": ("python_environment",),
            "reports": ("QueryReport",),
            "sessions": ("register", "session"),
            "source": ("SkylarkDataSource",),
            "streams": ("active", "start"),
        },
    )
