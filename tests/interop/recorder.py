"""Recorder: a TCP relay that writes down every frame that passes, in both directions.

It stands in front of one server. Where that server's address travels inside an answer (a route), a
client would go around the recorder; `rewrite` exchanges such text on its way to the client for text
of the same length. What is written down is always what the server really sent.
"""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from dataclasses import dataclass

from wire import Frame, split_frames

TO_SERVER = "to-server"
TO_CLIENT = "to-client"


@dataclass(frozen=True)
class Recorded:
    """One frame: where it passed, which way, in which connection, and its bytes."""

    link: str
    connection: int
    direction: str
    data: bytes

    @property
    def frame(self) -> Frame:
        """What the bytes mean."""
        return Frame.decode(self.data)


class Recorder:
    """Relays 127.0.0.1:port to a server and appends what passes to `tape`."""

    def __init__(self, link: str, server: str, tape: list[Recorded], *, port: int) -> None:
        self.link = link
        self.server = server
        self.tape = tape
        self.rewrite: dict[bytes, bytes] = {}
        self._listener = socket.create_server(("127.0.0.1", port))
        self._sockets: list[socket.socket] = []
        self._connections = 0

    @property
    def address(self) -> str:
        """Where to connect instead of the server."""
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Recorder:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):  # Wakes the accepting thread.
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for one in self._sockets:
            one.close()

    def _accept(self) -> None:
        host, _, port = self.server.rpartition(":")
        while True:
            try:
                client, _peer = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection((host, int(port)))
            except OSError:  # The server is down, and so the client sees it.
                client.close()
                continue
            self._sockets += [client, server]
            number = self._connections
            self._connections += 1
            for source, sink, direction in (
                (client, server, TO_SERVER),
                (server, client, TO_CLIENT),
            ):
                threading.Thread(
                    target=self._relay, args=(source, sink, direction, number), daemon=True
                ).start()

    def _relay(
        self, source: socket.socket, sink: socket.socket, direction: str, number: int
    ) -> None:
        buffer = bytearray()
        try:
            while data := source.recv(1 << 16):
                buffer += data
                for frame in split_frames(buffer):
                    self.tape.append(Recorded(self.link, number, direction, frame))
                    sink.sendall(self._rewritten(frame) if direction == TO_CLIENT else frame)
        except OSError:
            return  # Either end hung up; the finally clause tells the other.
        finally:
            with suppress(OSError):
                sink.shutdown(socket.SHUT_RDWR)

    def _rewritten(self, frame: bytes) -> bytes:
        for old, new in self.rewrite.items():
            assert len(old) == len(new), f"{old!r} and {new!r} differ in length"
            frame = frame.replace(old, new)
        return frame
