from ..errors import RemoteProtocolError
from .command import Command

def decode_frames(
    data: bytes | bytearray, frame_bytes_max: int, header_bytes_max: int
) -> tuple[list[Command], int, RemoteProtocolError | None]: ...
def encode_frames(commands: list[Command]) -> bytes: ...
