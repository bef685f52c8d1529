"""Typed calls to servers: one coroutine for each request code."""

from .name_server import CALL_TIMEOUT_MS as CALL_TIMEOUT_MS
from .name_server import REGISTER_TIMEOUT_MS as REGISTER_TIMEOUT_MS
from .name_server import NameServers as NameServers
from .name_server import RemoteNameServer as RemoteNameServer
