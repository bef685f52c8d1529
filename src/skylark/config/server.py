"""ServerSettings: what every server can be told about its port, its peers, TLS and its log."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, TypeVar

from ..errors import ConfigError
from . import rocketmq_keys
from .remote import Update, apply_update, public_items
from .schema import Settings, setting

UPDATE_TEXT_CHARS_MAX = 65_536

_MIB = 1024 * 1024
_GIB = 1024 * _MIB
_DAY_MS = 24 * 3_600_000
_INT_MAX = 2**31 - 1


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings(Settings):
    """Settings that a broker and a name server have in common.

    The names from listen_host to tls_handshakes_max are those that NetConfig.of() reads.
    """

    # RocketMQ's server answers these too. They have no meaning here; tools that list or compare
    # settings expect to find them.
    inert_keys: ClassVar[tuple[str, ...]] = ()

    rocketmq_home: str = setting(
        "",
        "Directory of a RocketMQ installation, for scripts that set it; nothing is read there.",
        path=True,
        rocketmq_key="rocketmqHome",
        env=("ROCKETMQ_HOME",),
    )
    config_black_list: str = setting(
        "configBlackList",
        "Keys that no request may change, joined by `;`; it narrows what is allowed, never widens.",
        rocketmq_default="configBlackList",
    )

    # Network.

    listen_host: str = setting(
        "0.0.0.0",  # noqa: S104 - brokers and clients of other machines are the point
        "Address to listen on; 127.0.0.1 keeps the server to this machine.",
        rocketmq_key="bindAddress",
        rocketmq_default="0.0.0.0",  # noqa: S104
    )
    listen_port: int = setting(
        0, "Port to listen on; 0 picks a free one.", at_least=0, at_most=65_535
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
        at_most=_GIB,
    )
    held_bytes_max: int = setting(
        64 * _MIB,
        "Unfinished frames of all peers together; a peer whose frame goes beyond it is closed.",
        at_least=_MIB,
        at_most=1024 * _GIB,
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

    # Logs.

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
        "Directory of the server's log file; `-` logs to standard error only.",
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
        if self.header_bytes_max > self.frame_bytes_max:
            raise ConfigError("headerBytesMax is larger than frameBytesMax: lower it")


_S = TypeVar("_S", bound=ServerSettings)


def config_text(config: ServerSettings) -> str:
    """Answer who asks for the settings: `key=value` lines, with paths and secrets masked."""
    inert = [(key, rocketmq_keys.INERT[key].default) for key in config.inert_keys]
    items = public_items(config) + inert
    return "".join(f"{key}={value}\n" for key, value in items)


def update_from_text(config: _S, text: str) -> Update[_S]:
    """Apply what a peer wants changed, all of it or nothing.

    Raises SettingRefused (answer NO_PERMISSION) for a key that is not on the allow-list, and
    another ConfigError (answer SYSTEM_ERROR) for a text or a value that does not parse.
    """
    if len(text) > UPDATE_TEXT_CHARS_MAX:
        raise ConfigError(
            f"an update of {len(text)} characters; at most {UPDATE_TEXT_CHARS_MAX} are taken"
        )
    refuse = [key.strip() for key in config.config_black_list.split(";")]
    return apply_update(config, text, refuse=refuse)
