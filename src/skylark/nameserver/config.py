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

from ..config import Settings, Update, apply_update, public_items, rocketmq_keys, setting
from ..errors import ConfigError

LISTEN_PORT = 9876
LOG_FILE_NAME = "namesrv.log"
UPDATE_TEXT_CHARS_MAX = 65_536

_MIB = 1024 * 1024
_DAY_MS = 24 * 3_600_000
_INT_MAX = 2**31 - 1

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
class NameServerConfig(Settings):
    """The settings of a name server."""

    component: ClassVar[str] = "nameserver"

    listen_host: str = setting(
        "0.0.0.0",  # noqa: S104 - brokers and clients of other machines are the point
        "Address to listen on; 127.0.0.1 keeps the name server to this machine.",
        rocketmq_key="bindAddress",
        rocketmq_default="0.0.0.0",  # noqa: S104
    )
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
    rocketmq_home: str = setting(
        "",
        "Directory of a RocketMQ installation, for scripts that set it; nothing is read there.",
        path=True,
        rocketmq_key="rocketmqHome",
        env=("ROCKETMQ_HOME",),
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

    address_service_port: int = setting(
        0,
        "Port of the HTTP address service (`GET /rocketmq/nsaddr`); clients ask 8080; 0 is off.",
        at_least=0,
        at_most=65_535,
    )

    frame_bytes_max: int = setting(
        16 * _MIB,
        "Largest frame; a longer one closes the connection before memory is taken.",
        at_least=65_536,
        at_most=256 * _MIB,
        rocketmq_key="com.rocketmq.remoting.frameMaxLength",
        rocketmq_default=16 * _MIB,
    )
    header_bytes_max: int = setting(
        65_536, "Largest header within a frame.", at_least=1_024, at_most=16 * _MIB
    )
    first_frame_timeout_ms: int = setting(
        10_000,
        "A connection that has not sent a whole frame by then is closed.",
        at_least=100,
        at_most=_DAY_MS,
    )
    idle_timeout_ms: int = setting(
        120_000,
        "A connection that has been silent for this long is closed.",
        at_least=1_000,
        at_most=_DAY_MS,
        rocketmq_key="serverChannelMaxIdleTimeSeconds",
        rocketmq_default=120,
        rocketmq_unit=1_000,
    )
    stalled_write_timeout_ms: int = setting(
        30_000,
        "A peer that has read nothing for this long while answers wait for it is closed.",
        at_least=100,
        at_most=_DAY_MS,
    )
    unsent_bytes_max: int = setting(
        _MIB,
        "A peer that leaves more than this unread is closed.",
        at_least=65_536,
        at_most=1024 * _MIB,
    )
    held_bytes_max: int = setting(
        64 * _MIB,
        "Unfinished frames of all peers together; a peer whose frame goes beyond it is closed.",
        at_least=_MIB,
        at_most=1024 * 1024 * _MIB,
    )
    in_flight_max: int = setting(
        256,
        "Requests of one connection under way at once; reading pauses there.",
        at_least=1,
        at_most=65_536,
    )
    connections_max: int = setting(
        15_000, "Connections held at once; further ones are refused.", at_least=1, at_most=_INT_MAX
    )

    drain_timeout_ms: int = setting(
        10_000,
        "How long a stop waits for the requests under way.",
        at_least=0,
        at_most=_DAY_MS,
    )

    tls_mode: str = setting(
        "permissive",
        "`disabled` closes TLS connections, `enforcing` plain ones, `permissive` takes both; "
        "without a certificate, permissive is plain only.",
        choices=("disabled", "permissive", "enforcing"),
        rocketmq_key="tls.server.mode",
        rocketmq_default="permissive",
    )
    tls_cert_path: str = setting(
        "",
        "Certificate chain of the server, PEM; read again when the file changes.",
        path=True,
        rocketmq_key="tls.server.certPath",
    )
    tls_key_path: str = setting(
        "",
        "Private key of the server, PEM, without a password.",
        path=True,
        rocketmq_key="tls.server.keyPath",
    )
    tls_trust_path: str = setting(
        "",
        "Certificates that client certificates are checked against, PEM.",
        path=True,
        rocketmq_key="tls.server.trustCertPath",
    )
    tls_client_auth: str = setting(
        "none",
        "Whether a client shows a certificate.",
        choices=("none", "optional", "require"),
        rocketmq_key="tls.server.need.client.auth",
        rocketmq_default="none",
    )
    tls_handshake_timeout_ms: int = setting(
        10_000, "A handshake that takes longer is dropped.", at_least=100, at_most=_DAY_MS
    )
    tls_handshakes_max: int = setting(
        200, "Handshakes under way at once.", at_least=1, at_most=65_536
    )

    log_format: str = setting(
        "text", "`text` for people, `json` for one JSON object per line.", choices=("text", "json")
    )
    log_level: str = setting(
        "info",
        "The least level that is logged.",
        choices=("debug", "info", "warning", "error"),
        hot=True,
        remote=True,
    )
    log_dir: str = setting(
        "~/logs/rocketmqlogs",
        f"Directory of {LOG_FILE_NAME}; `-` logs to standard error only.",
        path=True,
    )

    def check_together(self) -> None:
        if bool(self.tls_cert_path) != bool(self.tls_key_path):
            raise ConfigError(
                "tlsCertPath and tlsKeyPath belong together: set both, or neither for no TLS"
            )
        if self.tls_mode == "enforcing" and not self.tls_cert_path:
            raise ConfigError(
                "tlsMode=enforcing needs a certificate: set tlsCertPath and tlsKeyPath"
            )
        if self.tls_client_auth != "none" and not self.tls_trust_path:
            raise ConfigError(
                f"tlsClientAuth={self.tls_client_auth} needs certificates to check against: "
                "set tlsTrustPath, or tlsClientAuth=none"
            )
        if self.broker_scan_interval_ms > self.broker_expiry_ms:
            raise ConfigError(
                "brokerScanIntervalMs is longer than brokerExpiryMs: expired brokers would linger; "
                "lower the first or raise the second"
            )
        if self.header_bytes_max > self.frame_bytes_max:
            raise ConfigError("headerBytesMax is larger than frameBytesMax: lower it")


def config_text(config: NameServerConfig) -> str:
    """Answer GET_NAMESRV_CONFIG: `key=value` lines, with paths and secrets masked."""
    items = public_items(config) + [(key, rocketmq_keys.INERT[key].default) for key in _INERT_KEYS]
    return "".join(f"{key}={value}\n" for key, value in items)


def update_from_text(config: NameServerConfig, text: str) -> Update[NameServerConfig]:
    """Apply the body of UPDATE_NAMESRV_CONFIG, all of it or nothing.

    Raises SettingRefused (answer NO_PERMISSION) for a key that is not on the allow-list, and
    another ConfigError (answer SYSTEM_ERROR) for a text or a value that does not parse.
    """
    if len(text) > UPDATE_TEXT_CHARS_MAX:
        raise ConfigError(
            f"an update of {len(text)} characters; at most {UPDATE_TEXT_CHARS_MAX} are taken"
        )
    refuse = [key.strip() for key in config.config_black_list.split(";")]
    return apply_update(config, text, refuse=refuse)
