"""NameServerConfig: every setting of a name server, and which of them a peer may read or change.

What a peer sees (GET_NAMESRV_CONFIG): our settings under RocketMQ's names where it has them, then
the keys that only RocketMQ's name server knows. A file path or a secret is answered as `***`: the
name server has no accounts, so that nobody who asks is known to be an administrator.

What a peer may change (UPDATE_NAMESRV_CONFIG): only settings marked remote, typed and ranged; none
of them is a path, a command, a class or an address.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..config import ServerSettings, setting
from ..errors import ConfigError
from ..protocol.registration_proof import KEY_CHARS_MIN

LISTEN_PORT = 9876
LOG_FILE_NAME = "namesrv.log"

_DAY_MS = 24 * 3_600_000

# RocketMQ's name server answers these too. They have no meaning here; tools that list or compare
# settings expect to find them.
_INERT_KEYS = (
    "productEnvName",
    "clusterTest",
    "serverWorkerThreads",
    "serverCallbackExecutorThreads",
    "serverSelectorThreads",
    "serverOnewaySemaphoreValue",
    "serverAsyncSemaphoreValue",
    "serverSocketSndBufSize",
    "serverSocketRcvBufSize",
    "writeBufferHighWaterMark",
    "writeBufferLowWaterMark",
    "serverSocketBacklog",
    "serverPooledByteBufAllocatorEnable",
    "useEpollNativeSelector",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NameServerConfig(ServerSettings):
    """The settings of a name server."""

    component: ClassVar[str] = "nameserver"
    inert_keys: ClassVar[tuple[str, ...]] = _INERT_KEYS

    listen_port: int = setting(
        LISTEN_PORT,
        "Port to listen on; 0 picks a free one.",
        at_least=0,
        at_most=65_535,
        rocketmq_default=LISTEN_PORT,
    )
    namesrv_addr: str = setting(
        "",
        "All name servers of the cluster, as `host:port;host:port`: what the address service hands "
        "out. Empty stands for this one.",
        rocketmq_key="namesrvAddr",
        env=("NAMESRV_ADDR",),
    )
    kv_config_path: str = setting(
        "~/namesrv/kvConfig.json",
        "File that holds the key-value table.",
        path=True,
        rocketmq_default="~/namesrv/kvConfig.json",
    )
    config_store_path: str = setting(
        "~/namesrv/namesrv.properties",
        "File that settings changed by request are written to; with `-c FILE` it is that file, "
        "which the next start reads again.",
        path=True,
        rocketmq_default="~/namesrv/namesrv.properties",
    )
    config_black_list: str = setting(
        "configBlackList;configStorePath;kvConfigPath;rocketmqHome",
        "Keys that no request may change, joined by `;`; it narrows what is allowed, never widens.",
        rocketmq_default="configBlackList;configStorePath;kvConfigPath",
    )
    order_message_enable: bool = setting(
        False,
        "Add the ORDER_TOPIC_CONFIG entry of a topic to its route.",
        hot=True,
        remote=True,
        rocketmq_default=False,
    )
    broker_expiry_ms: int = setting(
        120_000,
        "A broker that has not registered for this long, by the monotonic clock, is dropped.",
        at_least=1_000,
        at_most=_DAY_MS,
    )
    broker_scan_interval_ms: int = setting(
        10_000,
        "How often expired brokers are looked for.",
        at_least=100,
        at_most=_DAY_MS,
        rocketmq_key="scanNotActiveBrokerInterval",
        rocketmq_default=10_000,
    )

    registration_key: str = setting(
        "",
        "Secret that brokers and operators prove before they may change anything; empty believes "
        "everybody, as RocketMQ does.",
        secret=True,
    )
    registration_key_acl: bool = setting(
        False,
        "Take the signatures of RocketMQ's tools (aclRPCHook) made with the registration key, too.",
    )

    address_service_port: int = setting(
        0,
        "Port of the HTTP address service (`GET /rocketmq/nsaddr`); clients ask 8080; 0 is off.",
        at_least=0,
        at_most=65_535,
    )

    def check_together(self) -> None:
        ServerSettings.check_together(self)
        if 0 < len(self.registration_key) < KEY_CHARS_MIN:
            raise ConfigError(
                f"registrationKey is shorter than {KEY_CHARS_MIN} characters and "
                "could be guessed; choose a longer one"
            )
        if self.broker_scan_interval_ms > self.broker_expiry_ms:
            raise ConfigError(
                "brokerScanIntervalMs is longer than brokerExpiryMs: expired brokers would linger; "
                "lower the first or raise the second"
            )
