"""TLS without sockets: certificates that reload, and one encrypted conversation.

A peer's first byte tells what it speaks: 0x16 opens a TLS handshake, while a plain frame begins
with the top byte of a length below 16 MiB, which is 0x00 (or 0x01 at the very limit). TlsSession
turns ciphertext into plain bytes and back in memory, so it works over any transport, simulated
ones too.
"""

from __future__ import annotations

import contextlib
import logging
import os
import ssl
from typing import Final

from ..errors import ConfigError, RemoteProtocolError
from .config import ClientAuth, NetConfig

logger = logging.getLogger(__name__)

HELLO: Final = 0x16
_CHUNK_BYTES: Final = 256 * 1024


class Certificates:
    """The server's certificate and key, read again when their files change."""

    def __init__(self, config: NetConfig) -> None:
        self._config = config
        self._stamp = (
            self._read_stamp()
        )  # Before loading: a file that changes meanwhile is read again.
        self._context = self._load()

    def context(self) -> ssl.SSLContext:
        """The context for a new connection; a bad new file keeps the old one in force."""
        try:
            stamp = self._read_stamp()
            if stamp != self._stamp:
                self._stamp = stamp
                self._context = self._load()
                logger.info("certificate=%s reloaded", self._config.tls_cert_path)
        except ConfigError as error:
            logger.error("the old certificate stays in force: %s", error)
        return self._context

    def _paths(self) -> list[str]:
        config = self._config
        return [p for p in (config.tls_cert_path, config.tls_key_path, config.tls_trust_path) if p]

    def _read_stamp(self) -> tuple[tuple[int, int, int] | None, ...]:
        return tuple(_stamp_of(path) for path in self._paths())

    def _load(self) -> ssl.SSLContext:
        config = self._config
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION
        try:
            # A password, if only an empty one: OpenSSL would ask for it on the terminal.
            context.load_cert_chain(config.tls_cert_path, config.tls_key_path, password="")
            if config.tls_client_auth != ClientAuth.NONE:
                context.load_verify_locations(config.tls_trust_path)
                required = config.tls_client_auth == ClientAuth.REQUIRE
                context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                f"TLS files {', '.join(self._paths())} cannot be used: {error}"
            ) from None
        return context


def _stamp_of(path: str) -> tuple[int, int, int] | None:
    try:
        stat = os.stat(path)
    except OSError:
        return None  # Loading it says what is wrong.
    return stat.st_mtime_ns, stat.st_size, stat.st_ino


def client_context(trust_path: str = "", cert_path: str = "", key_path: str = "") -> ssl.SSLContext:
    """A context for outgoing connections; without an authority any certificate is accepted."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = False  # Brokers are known by address, not by name.
    try:
        if trust_path:
            context.load_verify_locations(trust_path)
        else:
            context.verify_mode = ssl.CERT_NONE
        if cert_path:
            context.load_cert_chain(cert_path, key_path or None, password="")
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"TLS files of the client cannot be used: {error}") from None
    return context


class TlsSession:
    """One encrypted conversation. After every call, what take_output() gives goes to the wire."""

    def __init__(self, context: ssl.SSLContext, *, server_side: bool) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._ssl = context.wrap_bio(self._incoming, self._outgoing, server_side=server_side)
        self.is_established = False

    def receive(self, data: bytes) -> bytes:
        """Take ciphertext, return the plain bytes it completes. Raises RemoteProtocolError."""
        self._incoming.write(data)
        if not self.is_established and not self.handshake():
            return b""
        plain = []
        try:
            while True:
                chunk = self._ssl.read(_CHUNK_BYTES)
                if not chunk:
                    break
                plain.append(chunk)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            pass  # The peer said goodbye; the end of the stream follows.
        except ssl.SSLError as error:
            raise RemoteProtocolError(f"TLS: {error.reason or error}") from None
        return b"".join(plain)

    def handshake(self) -> bool:
        """Go on with the handshake; whether it is finished. Raises RemoteProtocolError."""
        try:
            self._ssl.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLError as error:
            raise RemoteProtocolError(f"TLS handshake: {error.reason or error}") from None
        self.is_established = True
        return True

    def send(self, plain: bytes) -> None:
        """Encrypt bytes for the peer; only once the handshake is finished."""
        view = memoryview(plain)
        while view:
            view = view[self._ssl.write(view) :]

    def take_output(self) -> bytes:
        """The ciphertext that must go to the peer now."""
        return self._outgoing.read()

    def close(self) -> None:
        """Say goodbye, as far as the peer listens."""
        # The peer has not answered yet; our side of the goodbye is in the output all the same.
        with contextlib.suppress(ssl.SSLError):
            self._ssl.unwrap()
