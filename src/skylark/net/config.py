"""NetConfig: what one listening port allows its peers."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, Self

from ..errors import ConfigError
from ..protocol.frame import FRAME_BYTES_MAX, HEADER_BYTES_MAX


class TlsMode(StrEnum):
    """What to do with the first bytes of a connection."""

    DISABLED = "disabled"  # Close a connection that begins with a TLS hello.
    PERMISSIVE = "permissive"  # Speak whichever the peer speaks.
    ENFORCING = "enforcing"  # Close a connection that does not begin with a TLS hello.


class ClientAuth(StrEnum):
    """Whether a TLS peer must show a certificate."""

    NONE = "none"
    OPTIONAL = "optional"
    REQUIRE = "require"


@dataclass(frozen=True, slots=True, kw_only=True)
class NetConfig:
    """Limits and encryption of a port; the defaults are those of S01 to S07 in docs/security.md."""

    listen_host: str = ""
    listen_port: int = 0
    frame_bytes_max: int = FRAME_BYTES_MAX
    header_bytes_max: int = HEADER_BYTES_MAX
    first_frame_timeout_ms: int = 10_000
    idle_timeout_ms: int = 120_000
    stalled_write_timeout_ms: int = 30_000
    unsent_bytes_max: int = 1024 * 1024
    held_bytes_max: int = 64 * 1024 * 1024  # Unfinished frames of all peers together.
    in_flight_max: int = 256
    connections_max: int = 15_000
    drain_timeout_ms: int = 10_000
    tls_mode: TlsMode = TlsMode.PERMISSIVE
    tls_cert_path: str = ""
    tls_key_path: str = ""
    tls_trust_path: str = ""
    tls_client_auth: ClientAuth = ClientAuth.NONE
    tls_handshake_timeout_ms: int = 10_000
    tls_handshakes_max: int = 200

    def __post_init__(self) -> None:
        if not 0 <= self.listen_port <= 65535:
            raise ConfigError(f"listenPort {self.listen_port} is not a port; use 0 to 65535")
        if self.tls_mode == TlsMode.ENFORCING and not self.tls_cert_path:
            raise ConfigError("tlsMode enforcing needs a certificate; set tlsCertPath")
        if bool(self.tls_cert_path) != bool(self.tls_key_path):
            raise ConfigError("a TLS certificate and its key go together; set both or neither")
        if self.tls_client_auth != ClientAuth.NONE and not self.tls_trust_path:
            raise ConfigError("client certificates need an authority to check; set tlsTrustPath")

    @classmethod
    def of(cls, settings: Any) -> Self:
        """Take the fields of the same names from a larger config."""
        names = [item.name for item in fields(cls) if hasattr(settings, item.name)]
        values = {name: getattr(settings, name) for name in names}
        if "tls_mode" in values:
            values["tls_mode"] = TlsMode(values["tls_mode"])
        if "tls_client_auth" in values:
            values["tls_client_auth"] = ClientAuth(values["tls_client_auth"])
        return cls(**values)
