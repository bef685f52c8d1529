"""Identity: who this broker is to others, in the forms that answers and records need."""

from __future__ import annotations

from ..errors import LocalProtocolError
from ..model.message import HostAddress
from ..protocol.exchange import Peer
from ..protocol.record import pack_host
from .config import BrokerConfig, LiveConfig

_UNKNOWN_HOST = pack_host("0.0.0.0", 0)  # noqa: S104 - a peer without an address, in tests


class Identity:
    """Name, addresses and their packed forms."""

    def __init__(self, live: LiveConfig, *, ip: str, port: int) -> None:
        """The ip is what records carry; clients are told brokerIP1, which may be a name."""
        self._live = live
        self._ip = ip
        self._born_hosts: dict[Peer, bytes] = {}
        self._traced: BrokerConfig | None = None
        self._trace_fields: dict[str, str] = {}
        # In a Raft group both follow the role; an id below 0 is registered nowhere.
        self.broker_id = live.current.broker_id
        self.leader_term: int | None = None
        self.bind(port)

    def bind(self, port: int, ha_port: int = 0) -> None:
        """Take the ports that the broker really listens on; replicas' is the next one, if not 0."""
        self.host = HostAddress(self._ip, port)
        advertised = self._live.current.broker_ip1 or self._ip
        self.address = join_address(advertised, port)
        self.ha_address = join_address(
            self._live.current.broker_ip2 or advertised, ha_port or port + 1
        )
        self.store_host = pack_host(self._ip, port)
        self.id_prefix = self.store_host.hex().upper()

    @property
    def name(self) -> str:
        """The broker's name."""
        return self._live.current.broker_name

    @property
    def cluster(self) -> str:
        """The cluster's name."""
        return self._live.current.broker_cluster_name

    def trace_fields(self) -> dict[str, str]:
        """What every answer to a send carries; not to be changed."""
        config = self._live.current
        if config is not self._traced:
            self._traced = config
            self._trace_fields = {
                "MSG_REGION": config.region_id,
                "TRACE_ON": "true" if config.trace_on else "false",
            }
        return self._trace_fields

    def born_host(self, peer: Peer) -> bytes:
        """A peer's address as records hold it."""
        known = self._born_hosts.get(peer)
        if known is None:
            known = self._born_hosts[peer] = _packed(peer.address)
        return known

    def connection_lost(self, peer: Peer) -> None:
        """A peer is gone."""
        self._born_hosts.pop(peer, None)


def join_address(host: str, port: int) -> str:
    """An address as text."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _packed(address: str) -> bytes:
    host, _, port = address.rpartition(":")
    try:
        return pack_host(host.strip("[]"), int(port))
    except (LocalProtocolError, ValueError):
        return _UNKNOWN_HOST
