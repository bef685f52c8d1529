"""Proxies: a network on loopback that can be cut, where namespaces cannot be had.

A node listens on one loopback address and is known by another, where a proxy of ours listens on
the same ports. Who connects is told by the socket's owner, so that a cut between two nodes leaves
all others alone. What is cut is held back, not reset, as a network does it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterable, Sequence
from typing import Final

from .fabric import OUTSIDE, Cut

# Two runs at once on one machine have different numbers here.
_NUMBER: Final = 64 + os.getpid() % 128
_BOUND: Final = f"127.{_NUMBER}.0"
_KNOWN: Final = f"127.{_NUMBER}.1"
_SLOW_MS: Final = 150
_PIECE: Final = 64 << 10


class Proxies:
    """All on loopback."""

    name = "loopback proxies"

    # Below the range of outgoing connections, and not where brokers usually are.
    base_port = 12_000 + os.getpid() * 37 % 18_000

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {OUTSIDE: 1}
        self._pids: dict[int, str] = {}
        self._servers: list[asyncio.Server] = []
        self._cuts: set[Cut] = set()
        self._slowed: set[str] = set()
        self._changed = asyncio.Event()
        self._links: set[asyncio.Task[None]] = set()

    async def open(self, nodes: Sequence[str]) -> None:
        for number, node in enumerate(nodes, 10):
            self._numbers[node] = number

    def bound(self, node: str) -> str:
        return f"{_BOUND}.{self._numbers[node]}"

    def address(self, node: str) -> str:
        return f"{_KNOWN}.{self._numbers[node]}"

    async def expose(self, node: str, ports: Iterable[int]) -> None:
        for port in ports:

            async def serve(
                reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int = port
            ) -> None:
                task = asyncio.current_task()
                assert task is not None
                self._links.add(task)
                try:
                    await self._link(node, port, reader, writer)
                finally:
                    self._links.discard(task)

            self._servers.append(await asyncio.start_server(serve, self.address(node), port))

    def command(self, node: str, words: Sequence[str]) -> list[str]:
        return list(words)

    def started(self, node: str, pid: int) -> None:
        self._pids = {known: name for known, name in self._pids.items() if name != node}
        self._pids[pid] = node

    def cut(self, cuts: Iterable[Cut]) -> None:
        self._cuts = set(cuts)
        self._changed.set()
        self._changed = asyncio.Event()

    def slow(self, nodes: Iterable[str]) -> str:
        self._slowed = set(nodes)
        return f"{_SLOW_MS} ms"

    async def close(self) -> None:
        for server in self._servers:
            server.close()
        for link in list(self._links):
            link.cancel()
        await asyncio.gather(*self._links, return_exceptions=True)

    async def _link(
        self, node: str, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Carry one connection for as long as both ends want."""
        peer = writer.get_extra_info("peername")
        source = _owner(peer[0], peer[1], self._pids)
        onward: asyncio.StreamWriter | None = None
        try:
            await self._wait_open(source, node)
            back, onward = await asyncio.open_connection(self.bound(node), port)
            there = asyncio.create_task(self._carry(source, node, reader, onward))
            here = asyncio.create_task(self._carry(node, source, back, writer))
            try:
                await asyncio.wait((there, here), return_when=asyncio.FIRST_COMPLETED)
            finally:
                for one in (there, here):
                    one.cancel()
                await asyncio.gather(there, here, return_exceptions=True)
        except OSError:
            pass  # Nobody listens: the connection ends, as it would without us.
        finally:
            for end in (writer, onward):
                if end is not None:
                    end.transport.abort()

    async def _carry(
        self, source: str, target: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        with contextlib.suppress(ConnectionError):
            while piece := await reader.read(_PIECE):
                await self._wait_open(source, target)
                if source in self._slowed or target in self._slowed:
                    await asyncio.sleep(_SLOW_MS / 1000)
                writer.write(piece)
                await writer.drain()

    async def _wait_open(self, source: str, target: str) -> None:
        while (source, target) in self._cuts:
            await self._changed.wait()


def _owner(host: str, port: int, pids: dict[int, str]) -> str:
    """The node whose process has a socket with this local address; else it is from outside."""
    inode = _inode(host, port)
    if inode is None:
        return OUTSIDE
    wanted = f"socket:[{inode}]"
    for pid, node in pids.items():
        with contextlib.suppress(OSError):
            folder = f"/proc/{pid}/fd"
            for name in os.listdir(folder):
                with contextlib.suppress(OSError):
                    if os.readlink(f"{folder}/{name}") == wanted:
                        return node
    return OUTSIDE


def _inode(host: str, port: int) -> str | None:
    local = f"{_hex(host)}:{port:04X}"
    with open("/proc/net/tcp") as table:
        for line in table:
            fields = line.split()
            if len(fields) > 9 and fields[1] == local:
                return fields[9]
    return None


def _hex(host: str) -> str:
    return "".join(f"{int(part):02X}" for part in reversed(host.split(".")))
