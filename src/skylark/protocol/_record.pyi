from collections.abc import Callable

from ..model.message import HostAddress, StoredMessage
from .batch import BatchEntry
from .properties import LazyProperties
from .record import Buffer, DispatchInfo

def bind(
    message_type: type[StoredMessage],
    dispatch_type: type[DispatchInfo],
    properties_type: type[LazyProperties],
    unpack_host: Callable[[bytes], HostAddress],
    decode_record: Callable[..., StoredMessage],
    decode_dispatch: Callable[..., DispatchInfo | None],
    encode_record: Callable[..., bytes],
    encode_record_into: Callable[..., int],
) -> None: ...
def crc32(data: Buffer) -> int: ...
def crc32_is_folded() -> bool: ...
def java_string_hash(text: str) -> int: ...
def parse_properties(text: str | Buffer) -> dict[str, str]: ...
def decode_record(buffer: Buffer, at: int = 0, *, check_crc: bool = True) -> StoredMessage: ...
def decode_records(buffer: Buffer, *, check_crc: bool = True) -> list[StoredMessage]: ...
def decode_dispatch(
    buffer: Buffer, at: int = 0, *, check_crc: bool = False
) -> DispatchInfo | None: ...
def decode_dispatches(
    buffer: Buffer, at: int = 0, *, count_max: int = 1024, check_crc: bool = False
) -> tuple[list[DispatchInfo], int]: ...
def encode_record(
    *,
    topic: str | bytes,
    body: Buffer,
    properties: str | bytes = b"",
    queue_id: int = 0,
    queue_offset: int = 0,
    physical_offset: int = 0,
    flag: int = 0,
    sys_flag: int = 0,
    born_at_ms: int = 0,
    born_host: bytes,
    stored_at_ms: int = 0,
    store_host: bytes,
    reconsume_times: int = 0,
    prepared_transaction_offset: int = 0,
) -> bytes: ...
def encode_record_into(
    buffer: bytearray | memoryview,
    at: int,
    *,
    topic: str | bytes,
    body: Buffer,
    properties: str | bytes = b"",
    queue_id: int = 0,
    queue_offset: int = 0,
    physical_offset: int = 0,
    flag: int = 0,
    sys_flag: int = 0,
    born_at_ms: int = 0,
    born_host: bytes,
    stored_at_ms: int = 0,
    store_host: bytes,
    reconsume_times: int = 0,
    prepared_transaction_offset: int = 0,
) -> int: ...
def bind_batch(
    entry_type: type[BatchEntry], decode_batch: Callable[..., list[BatchEntry]]
) -> None: ...
def decode_batch(body: Buffer, *, count_max: int = 65_536) -> list[BatchEntry]: ...
