"""Wire: a blocking conversation with one server, for Spark's tasks and its driver.

A task is one thread of a short-lived process with nothing to do at the same time, so it needs no
event loop: it sends a request, perhaps the next one as well, and waits. Sockets are kept between
tasks, since Spark's workers live on.
"""

from __future__ import annotations

import socket
from collections import deque

from ..errors import BrokerError, CallTimeout, ConnectionLost, TransportError
from ..protocol.acl import sign_fields
from ..protocol.command import Command
from ..protocol.frame import (
    FRAME_BYTES_MAX,
    HEADER_BYTES_MAX,
    FrameLimits,
    decode_frames,
    encode_frames,
)
from .options import Access

_CONNECT_S_MAX = 3.0  # A request may wait for a disk; a machine that is there says so sooner.
_LENGTH_BYTES = 4
_PREFIX_BYTES = 8
_BUFFER_BYTES = 64 << 10
_GATHER_BYTES_MIN = 64 << 10  # Smaller bodies are copied behind their header.
# The answer to a batch has the ids of all its messages in its header.
_LIMITS = FrameLimits(frame_bytes_max=FRAME_BYTES_MAX, header_bytes_max=FRAME_BYTES_MAX)


class Wire:
    """One connection; requests may be sent ahead, answers come in their order of asking."""

    def __init__(self, address: str, access: Access) -> None:
        self.address = address
        self._access = access
        host, _, port = address.rpartition(":")
        timeout_s = access.timeout_ms / 1000
        try:
            self._socket = socket.create_connection(
                (host.strip("[]"), int(port)), min(timeout_s, _CONNECT_S_MAX)
            )
        except (OSError, ValueError) as error:
            raise TransportError(address, f"cannot be reached: {error}") from error
        self._socket.settimeout(timeout_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._opaque = 0
        self._asked: deque[int] = deque()
        self._early: dict[int, Command] = {}
        self._buffer = bytearray(_BUFFER_BYTES)

    def close(self) -> None:
        """End the conversation."""
        self._socket.close()

    def is_over(self) -> bool:
        """Whether the server has hung up, as on all who were idle for long."""
        if self._asked:
            return False  # Its answer will tell.
        self._socket.setblocking(False)
        try:
            return not self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True
        finally:
            self._socket.settimeout(self._access.timeout_ms / 1000)

    def ask(self, code: int, fields: dict[str, str], body: bytes = b"") -> None:
        """Send a request; answer() returns what comes back, in the order of asking."""
        access = self._access
        if access.access_key is not None and access.secret_key is not None:
            fields = sign_fields(
                fields, body, access_key=access.access_key, secret_key=access.secret_key
            )
        self._opaque += 1
        command = Command.request(code, fields, body)
        command.opaque = self._opaque
        self._asked.append(self._opaque)
        try:
            self._send(command)
        except TimeoutError as error:
            raise CallTimeout(self.address, self._access.timeout_ms) from error
        except OSError as error:
            raise ConnectionLost(self.address, str(error)) from error

    def _send(self, command: Command) -> None:
        body = command.body
        size = len(body)
        if not _GATHER_BYTES_MIN <= size <= FRAME_BYTES_MAX - HEADER_BYTES_MAX:
            self._socket.sendall(encode_frames([command]))
            return
        # A body of megabytes goes out from where it lies.
        command.body = b""
        frame = encode_frames([command])
        length = int.from_bytes(frame[:_LENGTH_BYTES], "big") + size
        head = length.to_bytes(_LENGTH_BYTES, "big") + frame[_LENGTH_BYTES:]
        sent = self._socket.sendmsg([head, body])
        if sent < len(head):
            self._socket.sendall(head[sent:])
            sent = len(head)
        if sent < len(head) + size:
            self._socket.sendall(memoryview(body)[sent - len(head) :])

    def answer(self) -> Command:
        """The answer to the oldest request that has none yet; raises TransportError.

        Its body lies in this connection's buffer, and is good until the next answer is taken.
        """
        opaque = self._asked.popleft()
        early = self._early.pop(opaque, None)
        if early is not None:
            return early
        while True:
            command = self._receive()
            # Notices that a server sends by itself are not for a reader without members.
            if not command.flag & 1:
                continue
            if command.opaque == opaque:
                return command
            command.body = bytes(command.body)
            self._early[command.opaque] = command

    def call(self, code: int, fields: dict[str, str], body: bytes = b"") -> Command:
        """Ask and wait; raises BrokerError for an answer other than success."""
        self.ask(code, fields, body)
        answer = self.answer()
        if answer.code != 0:
            raise BrokerError(answer.code, answer.remark, self.address)
        return answer

    def _receive(self) -> Command:
        # A frame of megabytes goes from the socket to its place, and is not copied after that.
        self._read(0, _PREFIX_BYTES)
        length = int.from_bytes(self._buffer[:4], "big", signed=True)
        header_length = int.from_bytes(self._buffer[5:8], "big")
        if not 4 <= length <= FRAME_BYTES_MAX - _LENGTH_BYTES or header_length > length - 4:
            raise ConnectionLost(self.address, f"a frame of {length} bytes is not acceptable")
        end = _LENGTH_BYTES + length
        if len(self._buffer) < end:
            # Answers that are still looked at keep the old one.
            self._buffer = self._buffer[:_PREFIX_BYTES] + bytearray(end - _PREFIX_BYTES)
        self._read(_PREFIX_BYTES, end)
        body_at = _PREFIX_BYTES + header_length
        head = (4 + header_length).to_bytes(4, "big") + self._buffer[4:body_at]
        commands, _, violation = decode_frames(
            bytes(head), _LIMITS.frame_bytes_max, _LIMITS.header_bytes_max
        )
        if violation is not None or len(commands) != 1:
            raise ConnectionLost(self.address, f"what it sent is no frame: {violation}")
        (command,) = commands
        command.body = memoryview(self._buffer).toreadonly()[body_at:end]
        return command

    def _read(self, at: int, end: int) -> None:
        view = memoryview(self._buffer)
        while at < end:
            try:
                count = self._socket.recv_into(view[at:end])
            except TimeoutError as error:
                raise CallTimeout(self.address, self._access.timeout_ms) from error
            except OSError as error:
                raise ConnectionLost(self.address, str(error)) from error
            if count == 0:
                raise ConnectionLost(self.address, "the peer closed")
            at += count
