"""ClientConfig: what producers and consumers of one session have in common.

The names are those of RocketMQ's ClientConfig; the defaults are 4.9.8's.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field

from ..errors import ConfigError
from ..model.names import check_topic_name

DEFAULT_INSTANCE_NAME = "DEFAULT"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """Settings of one session."""

    namesrv_addr: str | None = None  # host:port;host:port; None asks the other sources in turn.
    properties: Mapping[str, str] = field(default_factory=dict)  # rocketmq.namesrv.addr and kin.
    client_ip: str | None = None  # None finds the address that faces the name servers.
    instance_name: str = DEFAULT_INSTANCE_NAME  # DEFAULT becomes <pid>#<nanoseconds>.
    unit_name: str | None = None
    namespace: str | None = None
    poll_name_server_interval_ms: int = 30_000
    heartbeat_broker_interval_ms: int = 30_000
    persist_consumer_offset_interval_ms: int = 5_000
    api_timeout_ms: int = 3_000
    vip_channel_enabled: bool = False  # Talk to brokers on their port - 2.
    access_key: str | None = None
    secret_key: str | None = field(default=None, repr=False)
    security_token: str | None = field(default=None, repr=False)
    tls: ssl.SSLContext | None = None

    def __post_init__(self) -> None:
        for name in ("poll_name_server_interval_ms", "heartbeat_broker_interval_ms"):
            if getattr(self, name) < 10:
                raise ConfigError(f"{name} {getattr(self, name)} is too short; use 10 ms or more")
        if self.persist_consumer_offset_interval_ms < 10 or self.api_timeout_ms < 1:
            raise ConfigError("intervals and time-outs are milliseconds above zero")
        if (self.access_key is None) != (self.secret_key is None):
            raise ConfigError("access_key and secret_key go together; give both or neither")
        if not self.instance_name or "@" in self.instance_name:
            raise ConfigError("instance_name may not be empty nor contain @; choose another")
        if self.namespace is not None:
            check_topic_name(self.namespace)
