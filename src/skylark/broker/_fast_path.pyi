from array import array
from collections.abc import Mapping, Sequence

from ..protocol.command import Command
from ..protocol.crc import Buffer
from ..store import PutMessage, PutResult, PutStatus
from .fast_path import PullFields, SendContext

def bind(
    put_message: type[PutMessage], pull_fields: type[PullFields], put_ok: PutStatus
) -> None: ...
def plain_sends(
    commands: Sequence[Command],
    at: int,
    context: SendContext,
    messages: list[PutMessage],
    queue_ids: list[int],
) -> int: ...
def stored_answers(
    commands: Sequence[Command],
    at: int,
    queue_ids: Sequence[int],
    results: Sequence[PutResult],
    id_prefix: str,
    trace_fields: Mapping[str, str],
) -> bytes | None: ...
def plain_entries(entries: Buffer) -> bool: ...
def stored_ids(id_prefix: str, physical_offsets: array[int]) -> str: ...
def read_pull(fields: Mapping[str, str]) -> PullFields | None: ...
def pull_answer(
    command: Command,
    code: int,
    remark: str,
    suggestion: str,
    offsets: tuple[int, int, int],
    chunks: Sequence[bytes | memoryview],
) -> bytes | None: ...
