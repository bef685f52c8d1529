"""The name server: who serves which topic."""

from typing import TYPE_CHECKING

from ..lazy import front_door

if TYPE_CHECKING:
    from .app import NameServer as NameServer
    from .app import run as run
    from .config import NameServerConfig as NameServerConfig
else:
    __getattr__, __dir__ = front_door(
        globals(),
        {
            "app": (
                "NameServer",
                "run",
            ),
            "config": ("NameServerConfig",),
        },
    )
