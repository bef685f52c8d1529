"""The asyncio shell around protocol.Connection: listening, calling, TLS, limits."""

from .channel import Channel, Channels
from .config import ClientAuth, NetConfig, TlsMode
from .listener import Listener
from .network import AsyncioNetwork, Network, Server
from .switchboard import Handler, Switchboard
from .tls import client_context

__all__ = [
    "AsyncioNetwork",
    "Channel",
    "Channels",
    "ClientAuth",
    "Handler",
    "Listener",
    "NetConfig",
    "Network",
    "Server",
    "Switchboard",
    "TlsMode",
    "client_context",
]
