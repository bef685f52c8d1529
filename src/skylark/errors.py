"""The exception tree, whole:

    SkylarkError
    ├── LocalProtocolError        we were asked to send something the protocol cannot carry
    ├── RemoteProtocolError       the peer sent bytes that are not the protocol; the connection ends
    │   └── InvalidHeader         the frame is sound, a field of its typed header is not
    ├── InvalidBody               a JSON body, record or batch that does not parse
    ├── TransportError            the peer is not there
    │   ├── ConnectFailed         nothing listens, or the address does not resolve
    │   ├── ConnectionLost        it was there
    │   └── CallTimeout           it did not answer in time
    ├── ConfigError               a setting is unknown, of the wrong type or out of range
    ├── StoreError                the disk side
    │   ├── CorruptRecord         bytes on disk that are not what was written
    │   ├── StoreFull             no room for the next file
    │   ├── StoreClosed           used after close
    │   ├── StoreLocked           another process has the store open
    │   └── StoreUnreadable       the operating system refused a file
    └── BrokerError(code, remark) the peer answered with a code other than success

Every error keeps its facts as attributes, so that a caller never parses a message.
"""

from __future__ import annotations


class SkylarkError(Exception):
    """Root of everything that skylark raises on purpose."""


class LocalProtocolError(SkylarkError):
    """Our own mistake: a value that the protocol cannot carry."""


class RemoteProtocolError(SkylarkError):
    """The peer's mistake: bytes that no correct peer sends."""


class InvalidHeader(RemoteProtocolError):
    """One field of a typed header is missing or does not parse."""

    def __init__(self, header: str, field: str, problem: str) -> None:
        super().__init__(f"{header}: field {field!r} {problem}")
        self.header = header
        self.field = field
        self.problem = problem


class InvalidBody(SkylarkError):
    """A body that does not parse as what its request says it is."""


class TransportError(SkylarkError):
    """The peer cannot be reached, was lost, or kept silent."""

    def __init__(self, address: str, message: str) -> None:
        super().__init__(f"{address}: {message}")
        self.address = address


class ConnectFailed(TransportError):
    """No connection could be made."""


class ConnectionLost(TransportError):
    """The connection ended while something was under way on it."""


class CallTimeout(TransportError):
    """No answer came in time."""

    def __init__(self, address: str, timeout_ms: int) -> None:
        super().__init__(address, f"no answer within {timeout_ms} ms")
        self.timeout_ms = timeout_ms


class ConfigError(SkylarkError):
    """A setting that cannot be used; the message says which, where it came from and what would do."""


class StoreError(SkylarkError):
    """Something is wrong on the disk side."""


class CorruptRecord(StoreError):
    """Bytes on disk that are not what was written there."""


class StoreFull(StoreError):
    """There is no room for what should be written next."""


class StoreClosed(StoreError):
    """The store is closed, or has stopped accepting writes for good."""


class StoreLocked(StoreError):
    """Another process has this store open."""


class StoreUnreadable(StoreError):
    """The operating system refused access to a file."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path = path
        self.problem = problem


class BrokerError(SkylarkError):
    """A peer answered with a code other than success."""

    def __init__(self, code: int, remark: str | None, address: str | None = None) -> None:
        where = f" from {address}" if address else ""
        super().__init__(f"code {code}{where}: {remark or 'no remark'}")
        self.code = code
        self.remark = remark
        self.address = address
