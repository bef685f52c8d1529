"""The exception tree, whole:

    SkylarkError
    ├── LocalProtocolError        we were asked to send something the protocol cannot carry
    ├── RemoteProtocolError       the peer sent bytes that are not the protocol; the connection ends
    │   └── InvalidHeader         the frame is sound, a field of its typed header is not
    ├── InvalidBody               a JSON body, record or batch that does not parse
    │   ├── InvalidJson           it is not JSON, not even in fastjson's dialect
    │   ├── InvalidRecord         a record, on the wire or on disk: also a CorruptRecord
    │   ├── InvalidBatch          a batch body whose lengths lie
    │   └── InvalidCompression    a compressed body that does not expand, or expands too far
    ├── InvalidExpression         a filter expression that cannot be understood
    ├── InvalidName               a topic or group name that breaks the rules for names
    ├── TransportError            the peer is not there
    │   ├── ConnectFailed         nothing listens, or the address does not resolve
    │   ├── ConnectionLost        it was there
    │   └── CallTimeout           it did not answer in time
    ├── InvalidMessageId          a text that cannot be a message id of the kind asked for
    ├── MissingExtra              an optional library is needed and not installed
    ├── ConfigError               a setting is unknown, of the wrong type or out of range
    │   ├── InvalidSetting        one value from a file, the environment, a flag or a request
    │   └── SettingRefused        a peer asked to change what may not be changed remotely
    ├── StoreError                the disk side
    │   ├── CorruptRecord         bytes on disk that are not what was written (InvalidRecord is one)
    │   ├── StoreFull             no room for the next file
    │   ├── StoreClosed           used after close
    │   ├── StoreLocked           another process has the store open
    │   ├── StoreDamaged          a file is missing, of the wrong size, or damaged before its end
    │   ├── StoreTooNew           written by a version that this one does not know
    │   └── StoreUnreadable       the operating system refused a file
    ├── BrokerError(code, remark) the peer answered with a code other than success
    └── ClientError               a client could not do what it was asked to; it says what next
        ├── InvalidMessage        the message itself cannot be sent
        ├── NoRoute               no broker serves the topic, as far as anybody knows
        ├── SendFailed            no broker confirmed the message; it may be stored all the same
        │   └── BrokerBusy        the broker refuses for now: flow control
        ├── RequestTimedOut       the message went out, its reply did not come in time
        └── ClientClosed          used after it was closed

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


class InvalidJson(InvalidBody):
    """Text that is not JSON, not even in fastjson's dialect, or that is beyond a limit."""

    def __init__(self, problem: str, position: int) -> None:
        super().__init__(f"{problem} at character {position}")
        self.problem = problem
        self.position = position


class InvalidExpression(SkylarkError):
    """A filter expression that does not parse; the position counts characters from 0."""

    def __init__(self, expression: str, problem: str, position: int | None = None) -> None:
        super().__init__(f"expression {expression[:64]!r} {problem}")
        self.expression = expression
        self.problem = problem
        self.position = position

    def __reduce__(self) -> tuple[type[InvalidExpression], tuple[str, str, int | None]]:
        return type(self), (self.expression, self.problem, self.position)


class InvalidName(SkylarkError):
    """A topic or group name that breaks the rules for names."""

    def __init__(self, kind: str, name: str, problem: str) -> None:
        super().__init__(f"{kind} name {name[:64]!r} {problem}")
        self.kind = kind
        self.name = name
        self.problem = problem


class TransportError(SkylarkError):
    """The peer cannot be reached, was lost, or kept silent."""

    def __init__(self, address: str, message: str) -> None:
        super().__init__(f"{address}: {message}")
        self.address = address
        self.problem = message


class ConnectFailed(TransportError):
    """No connection could be made."""


class ConnectionLost(TransportError):
    """The connection ended while something was under way on it."""


class CallTimeout(TransportError):
    """No answer came in time."""

    def __init__(self, address: str, timeout_ms: int) -> None:
        super().__init__(address, f"no answer within {timeout_ms} ms")
        self.timeout_ms = timeout_ms


class InvalidBatch(InvalidBody):
    """A batch body whose entries do not add up."""

    def __init__(self, at: int, field: str, problem: str) -> None:
        super().__init__(f"batch entry at {at}: {field} {problem}")
        self.at = at
        self.field = field
        self.problem = problem

    def __reduce__(self) -> tuple[type[InvalidBatch], tuple[int, str, str]]:
        return type(self), (self.at, self.field, self.problem)


class InvalidCompression(InvalidBody):
    """A compressed body that is damaged, or that expands beyond what is allowed."""

    def __init__(self, codec: str, problem: str) -> None:
        super().__init__(f"{codec} body: {problem}")
        self.codec = codec
        self.problem = problem

    def __reduce__(self) -> tuple[type[InvalidCompression], tuple[str, str]]:
        return type(self), (self.codec, self.problem)


class InvalidMessageId(SkylarkError):
    """A text that cannot be a message id of the kind asked for."""

    def __init__(self, text: str, problem: str) -> None:
        super().__init__(f"message id {text[:64]!r} {problem}")
        self.text = text
        self.problem = problem

    def __reduce__(self) -> tuple[type[InvalidMessageId], tuple[str, str]]:
        return type(self), (self.text, self.problem)


class MissingExtra(SkylarkError):
    """An optional library is needed for this; the message says what to install."""

    def __init__(self, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs an optional library: pip install 'skylarkmq[{extra}]'")
        self.extra = extra
        self.purpose = purpose

    def __reduce__(self) -> tuple[type[MissingExtra], tuple[str, str]]:
        return type(self), (self.extra, self.purpose)


class ConfigError(SkylarkError):
    """A setting that cannot be used: which one, where it came from, and what would do."""


class InvalidSetting(ConfigError):
    """One value that does not parse or lies out of range."""

    def __init__(self, *, key: str, source: str, given: str, expected: str, next_step: str) -> None:
        super().__init__(f"{given}: expected {expected}; {next_step}")
        self.key = key
        self.source = source
        self.expected = expected
        self.next_step = next_step


class SettingRefused(ConfigError):
    """A peer asked to change a setting that is not on the allow-list."""

    def __init__(self, key: str) -> None:
        super().__init__(f"{key} cannot be changed remotely; set it in the config file and restart")
        self.key = key


class StoreError(SkylarkError):
    """Something is wrong on the disk side."""


class CorruptRecord(StoreError):
    """Bytes on disk that are not what was written there."""


class InvalidRecord(InvalidBody, CorruptRecord):
    """A message record that does not parse: bad input from a peer, damage when read from disk."""

    def __init__(self, at: int, field: str, problem: str) -> None:
        super().__init__(f"record at {at}: {field} {problem}")
        self.at = at
        self.field = field
        self.problem = problem

    def __reduce__(self) -> tuple[type[InvalidRecord], tuple[int, str, str]]:
        return type(self), (self.at, self.field, self.problem)


class StoreFull(StoreError):
    """There is no room for what should be written next."""


class StoreClosed(StoreError):
    """The store is closed, or has stopped accepting writes for good."""


class StoreLocked(StoreError):
    """Another process has this store open."""


class StoreDamaged(StoreError):
    """A file that cannot be trusted: which one, where in it, why, and what to do about it."""

    def __init__(self, path: str, at: int, problem: str, next_step: str) -> None:
        super().__init__(f"{path} at {at}: {problem}; {next_step}")
        self.path = path
        self.at = at
        self.problem = problem
        self.next_step = next_step

    def __reduce__(self) -> tuple[type[StoreDamaged], tuple[str, int, str, str]]:
        return type(self), (self.path, self.at, self.problem, self.next_step)


class StoreTooNew(StoreError):
    """The store was written by a version of skylark that this one does not know."""


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


class ClientError(SkylarkError):
    """A client could not do what it was asked to."""

    def __init__(
        self, problem: str, *, hint: str, code: int | None = None, broker: str | None = None
    ) -> None:
        super().__init__(f"{problem}; {hint}")
        self.problem = problem
        self.hint = hint
        self.code = code
        self.broker = broker


class InvalidMessage(ClientError):
    """A message that no broker would take."""


class NoRoute(ClientError):
    """No broker is known for a topic."""


class SendFailed(ClientError):
    """No broker confirmed a message; where is_ambiguous, one of them may have stored it."""

    def __init__(
        self,
        problem: str,
        *,
        hint: str,
        code: int | None = None,
        broker: str | None = None,
        brokers_tried: tuple[str, ...] = (),
        is_ambiguous: bool = False,
    ) -> None:
        super().__init__(problem, hint=hint, code=code, broker=broker)
        self.brokers_tried = brokers_tried
        self.is_ambiguous = is_ambiguous


class BrokerBusy(SendFailed):
    """The broker refuses sends for a while; its remark says why."""


class RequestTimedOut(ClientError):
    """A request message was stored, and nobody replied in time."""


class ClientClosed(ClientError):
    """A producer, consumer or session was used after it was closed, or before it was opened."""
