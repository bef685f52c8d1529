"""The name server: who serves which topic."""

from .app import NameServer as NameServer
from .app import run as run
from .config import NameServerConfig as NameServerConfig
