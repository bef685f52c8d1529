"""The asyncio shell around protocol.Connection: listening, calling, TLS, limits."""

from .channel import Channel, Channels
from .config import ClientAuth, NetConfig, TlsMode
from .listener import Listener
from .network import AsyncioNetwork, Network, Server
from .switchboard import AnyHandler, BatchHandler, Handler, RawHandler, Switchboard, refusal
from .tls import client_context

__all__ = [
    "AnyHandler",
    "AsyncioNetwork",
    "BatchHandler",
    "Channel",
    "Channels",
    "ClientAuth",
    "Handler",
    "Listener",
    "NetConfig",
    "Network",
    "RawHandler",
    "Server",
    "Switchboard",
    "TlsMode",
    "client_context",
    "refusal",
]
