"""SimNetwork: machines, and TCP between them, in virtual time.

`network.host("10.0.0.1")` is a machine; it is a `skylark.net.Network`, so product code listens and
connects through it as it would through real sockets. Every pair of machines has a link in each
direction with delay, loss and cuts of its own, and with its own random numbers, so that traffic or
a fault between two machines does not change the luck of others.

Connecting, as TCP does it:

    something listens        connected after one round trip; the server learns of it half-way
    nothing listens          refused after one round trip
    no way there or back     the attempt is repeated after 1, 3, 7, 15 … s until the caller, or
                             connect_limit_ms, ends it
    no such machine          refused at once
"""

from __future__ import annotations

import asyncio
import contextvars
import errno
import random
from collections.abc import Iterable
from itertools import combinations
from typing import TypeAlias

from ..errors import ConnectFailed
from ..net.network import ProtocolFactory
from .loop import SimLoop
from .timeline import SimulationError
from .trace import Trace
from .transport import LOCAL, Link, LinkConfig, SimTransport

_EPHEMERAL_FIRST, _EPHEMERAL_LAST = 32_768, 60_999
_ANY = ("", "0.0.0.0", "::")  # noqa: S104 (nothing real is bound)
_OWN = ("127.0.0.1", "localhost", "::1")
_SYN_RETRY_US = 1_000_000

Hosts: TypeAlias = "str | SimHost | Iterable[str | SimHost]"


class SimNetwork:
    """All machines and the links between them."""

    def __init__(
        self,
        loop: SimLoop,
        rng: random.Random,
        *,
        config: LinkConfig | None = None,
        trace: Trace | None = None,
    ) -> None:
        self.timeline = loop.timeline
        self.config = config or LinkConfig()
        self.trace = trace
        self._seed = rng.getrandbits(64)
        self._hosts: dict[str, SimHost] = {}
        self._names: dict[str, str] = {}
        self._links: dict[tuple[SimHost, SimHost], Link] = {}
        self._partitions: dict[Partition, None] = {}

    def host(self, address: str, name: str | None = None) -> SimHost:
        """Return the machine with an address; the first call makes it and may name it."""
        host = self._hosts.get(address)
        if host is None:
            host = self._hosts[address] = SimHost(self, address, name or address)
            if name is not None:
                self._names[name] = address
        return host

    @property
    def hosts(self) -> list[SimHost]:
        """All machines, in the order in which they were made."""
        return list(self._hosts.values())

    def find(self, address_or_name: str) -> SimHost | None:
        """Return the machine of an address or a name, or None."""
        return self._hosts.get(self._names.get(address_or_name, address_or_name))

    def link(self, src: SimHost, dst: SimHost) -> Link:
        """Return the direction from one machine to another."""
        link = self._links.get((src, dst))
        if link is None:
            config = LOCAL if src is dst else self.config
            link = self._make_link(src, dst, config)
            link.reverse = link if src is dst else self._make_link(dst, src, config)
            link.reverse.reverse = link
        return link

    def _make_link(self, src: SimHost, dst: SimHost, config: LinkConfig) -> Link:
        seed = f"{self._seed}/{src.address}>{dst.address}"
        link = self._links[src, dst] = Link(self, src, dst, config, seed)
        if src is not dst:
            dst._links_here.append(link)
            link.blocked = 0 if dst.is_up else 1
        return link

    def configure(self, config: LinkConfig) -> None:
        """Let all links between machines behave like this from now on."""
        self.config = config
        for (src, dst), link in self._links.items():
            if src is not dst:
                link.configure(config)

    def configure_link(self, left: Hosts, right: Hosts, config: LinkConfig) -> None:
        """Let the links between two machines, or sets of them, behave like this."""
        for src, dst in self._pairs(left, right):
            self.link(src, dst).configure(config)
            self.link(dst, src).configure(config)

    def slow(self, hosts: Hosts, extra_ms: float) -> None:
        """Let everything from and to these machines take longer; 0 ends it."""
        slowed = self._set(hosts)
        for src in slowed:
            for dst in self._hosts.values():
                if src is not dst:
                    self.link(src, dst).extra_us = int(extra_ms * 1000)
                    self.link(dst, src).extra_us = int(extra_ms * 1000)
        self.note("slow", ",".join(host.name for host in slowed), extra_ms)

    # Partitions

    def partition(self, left: Hosts, right: Hosts, *, one_way: bool = False) -> Partition:
        """Let nothing pass between two sets of machines; one way: nothing from left to right.

        Connections stay; what is sent waits and arrives after the partition, or the connection ends
        when TCP gives up.
        """
        pairs = self._pairs(left, right)
        cut = [self.link(src, dst) for src, dst in pairs]
        if not one_way:
            cut += [self.link(dst, src) for src, dst in pairs]
        return self._cut(cut)

    def isolate(self, hosts: Hosts) -> Partition:
        """Cut machines off from all others."""
        alone = self._set(hosts)
        return self.partition(alone, [host for host in self.hosts if host not in alone])

    def ring(self, hosts: Iterable[str | SimHost]) -> Partition:
        """Let every machine see only its two neighbours, so that majorities differ for each."""
        members = self._set(hosts)
        apart = [
            (members[i], members[j])
            for i, j in combinations(range(len(members)), 2)
            if j - i not in (1, len(members) - 1)
        ]
        return self._cut([self.link(*pair) for a, b in apart for pair in ((a, b), (b, a))])

    def bridge(self, left: Hosts, right: Hosts) -> Partition:
        """Cut two sets apart that both still see everyone else: the machines in neither set."""
        both = set(self._set(left)) & set(self._set(right))
        if both:
            raise ValueError(f"on both sides of the bridge: {sorted(host.name for host in both)}")
        return self.partition(left, right)

    def heal(self) -> None:
        """End all partitions and all slowness."""
        for partition in list(self._partitions):
            partition.heal()
        for link in self._links.values():
            link.extra_us = 0

    def _cut(self, links: list[Link]) -> Partition:
        partition = Partition(self, links)
        self._partitions[partition] = None
        self.note("cut", *sorted(f"{link.src.name}>{link.dst.name}" for link in links))
        for link in links:
            link.block()
        return partition

    # Connections

    def reset(self, left: Hosts, right: Hosts | None = None) -> int:
        """Reset the connections of these machines, or only those to others; return how many."""
        ends = self._set(left)
        others = None if right is None else self._set(right)
        hit = [
            transport
            for host in ends
            for transport in host._transports
            if others is None or transport._peer._host in others
        ]
        count = 0
        for transport in hit:
            # Somebody between the two says to each that the other has hung up.
            if not transport._gone:
                count += 1
                transport._reset_arrives()
                transport._peer._reset_arrives()
        return count

    def connections(self) -> list[tuple[str, str]]:
        """Return the connections that some machine still knows, as (local, remote) addresses."""
        return [
            (f"{sock[0]}:{sock[1]}", f"{peer[0]}:{peer[1]}")
            for host in self._hosts.values()
            for transport in host._transports
            for sock in [transport.get_extra_info("sockname")]
            for peer in [transport.get_extra_info("peername")]
        ]

    def note(self, event: str, *details: object) -> None:
        """Record something of the network itself in the trace."""
        if self.trace is not None:
            self.trace.add(self.timeline.now_us, "network", event, *details)

    def _set(self, hosts: Hosts) -> list[SimHost]:
        if isinstance(hosts, (str, SimHost)):
            hosts = [hosts]
        found = []
        for item in hosts:
            host = item if isinstance(item, SimHost) else self.find(item)
            if host is None:
                raise ValueError(f"no machine {item!r}; make it with network.host()")
            found.append(host)
        return found

    def _pairs(self, left: Hosts, right: Hosts) -> list[tuple[SimHost, SimHost]]:
        ours, theirs = self._set(left), self._set(right)
        return [(src, dst) for src in ours for dst in theirs if src is not dst]


class Partition:
    """Links that are cut, until healed."""

    def __init__(self, network: SimNetwork, links: list[Link]) -> None:
        self._network = network
        self._links = links

    def heal(self) -> None:
        """Let segments pass again; harmless when done twice."""
        if self in self._network._partitions:
            del self._network._partitions[self]
            self._network.note("heal", *sorted(f"{x.src.name}>{x.dst.name}" for x in self._links))
            for link in self._links:
                link.unblock()


class SimHost:
    """One machine, as a Network for the process on it."""

    def __init__(self, network: SimNetwork, address: str, name: str) -> None:
        self.network = network
        self.address = address
        self.name = name
        self.is_up = True
        self._listeners: dict[int, SimServer] = {}
        self._transports: dict[SimTransport, None] = {}
        self._links_here: list[Link] = []  # those that end here
        self._next_port = _EPHEMERAL_FIRST

    def __repr__(self) -> str:
        return f"<SimHost {self.name} {self.address}>"

    # Network

    async def listen(self, factory: ProtocolFactory, host: str, port: int) -> SimServer:
        """Accept connections on a port of this machine; 0 picks one."""
        if host not in _ANY and host not in _OWN and self.network.find(host) is not self:
            raise OSError(errno.EADDRNOTAVAIL, f"{host} is not an address of {self.name}")
        if not 0 <= port <= 65_535:
            raise OverflowError(f"port {port} must be 0-65535")
        port = port or self._free_port()
        if port in self._listeners:
            raise OSError(errno.EADDRINUSE, f"port {port} of {self.name} is in use")
        loop = _running_loop(self.network)
        if loop.is_dead:
            raise OSError(errno.ENETDOWN, f"the process on {self.name} is dead")
        address = self.address if host in _ANY else host
        server = SimServer(self, loop, factory, (address, port))
        self._listeners[port] = server
        return server

    async def connect(self, factory: ProtocolFactory, host: str, port: int) -> asyncio.Transport:
        """Connect to an address or a name; raises ConnectFailed."""
        remote = self if host in _OWN else self.network.find(host)
        if remote is None:
            raise ConnectFailed(f"{host}:{port}", "no such machine in this simulation")
        loop = _running_loop(self.network)
        if loop.is_dead:
            raise ConnectFailed(f"{host}:{port}", f"the process on {self.name} is dead")
        attempt = _Attempt(self, remote, factory, (host, port), loop)
        try:
            return await attempt.connected
        except asyncio.CancelledError:
            attempt.abandon()
            raise

    def _free_port(self) -> int:
        in_use = {transport.get_extra_info("sockname")[1] for transport in self._transports}
        for _ in range(_EPHEMERAL_LAST - _EPHEMERAL_FIRST + 1):
            port = self._next_port
            self._next_port = port + 1 if port < _EPHEMERAL_LAST else _EPHEMERAL_FIRST
            if port not in self._listeners and port not in in_use:
                return port
        raise OSError(errno.EADDRNOTAVAIL, f"{self.name} has no free port left")

    # Life and death

    def exit_process(self) -> None:
        """The process on this machine has ended: its ports are free, its connections close."""
        self._close_listeners()
        for transport in list(self._transports):
            transport._exit()

    def crash_process(self) -> None:
        """The process is killed: the machine resets its connections."""
        self._close_listeners()
        for transport in list(self._transports):
            transport._vanish(reset=True)

    def crash(self) -> None:
        """The machine dies: nobody is told, and nobody answers until it is started again."""
        self._close_listeners()
        for transport in list(self._transports):
            transport._vanish(reset=False)
        if self.is_up:
            self.is_up = False
            for link in self._links_here:
                link.block()

    def start(self) -> None:
        """The machine is back and knows none of its old connections."""
        if not self.is_up:
            self.is_up = True
            for link in self._links_here:
                link.unblock()

    def _close_listeners(self) -> None:
        for server in list(self._listeners.values()):
            server.close()


class SimServer:
    """A listening port of a machine."""

    def __init__(
        self, host: SimHost, loop: SimLoop, factory: ProtocolFactory, address: tuple[str, int]
    ) -> None:
        self.address = address
        self._host = host
        self._loop = loop
        self._factory = factory
        self._context = contextvars.copy_context()

    def close(self) -> None:
        if self._host._listeners.get(self.address[1]) is self:
            del self._host._listeners[self.address[1]]

    async def wait_closed(self) -> None:
        # Connections arrive in one step, so none is on its way in after close().
        await asyncio.sleep(0)

    def _accept(self, transport: SimTransport) -> None:
        if self._host._listeners.get(self.address[1]) is not self:
            transport.abort()
            return
        transport._start(self._factory())


class _Attempt:
    """One connect, from the first SYN to its end."""

    def __init__(
        self,
        local: SimHost,
        remote: SimHost,
        factory: ProtocolFactory,
        target: tuple[str, int],
        loop: SimLoop,
    ) -> None:
        self.connected: asyncio.Future[asyncio.Transport] = loop.create_future()
        self._local = local
        self._remote = remote
        self._factory = factory
        self._target = target
        self._loop = loop
        self._timeline = loop.timeline
        self._context = contextvars.copy_context()
        self._there = local.network.link(local, remote)
        self._back = local.network.link(remote, local)
        self._retry_us = _SYN_RETRY_US
        self._abandoned = False
        limit_us = self._there.config.connect_limit_ms * 1000
        self._limit = self._timeline.call_at_us(self._timeline.now_us + limit_us, self._time_out)
        self._send()

    def abandon(self) -> None:
        """The caller has lost patience."""
        self._abandoned = True
        self._limit.cancel()
        future = self.connected
        if future.done() and not future.cancelled() and future.exception() is None:
            future.result().abort()

    def _send(self) -> None:
        self._later(self._there.travel_us(0), self._syn_arrives)

    def _later(self, wait_us: int, step: object, *args: object) -> None:
        assert callable(step)
        self._timeline.call_at_us(self._timeline.now_us + wait_us, step, *args)

    def _is_over(self) -> bool:
        return self._abandoned or self.connected.done() or self._loop.is_dead

    def _syn_arrives(self) -> None:
        if self._is_over():
            return
        if self._there.blocked or self._back.blocked:
            # Nobody tells the sender; it tries again.
            wait_us, self._retry_us = self._retry_us, self._retry_us * 2
            self._later(wait_us, self._send_again)
            return
        server = self._remote._listeners.get(self._target[1])
        if server is None:
            self._later(self._back.travel_us(0), self._refused)
            return
        here = (self._local.address, self._local._free_port())
        there = (self._remote.address, self._target[1])
        ours = SimTransport(self._local, self._loop, self._there, here, there, self._context)
        theirs = SimTransport(
            self._remote, server._loop, self._back, there, here, server._context.copy()
        )
        ours._peer, theirs._peer = theirs, ours
        for end in (ours, theirs):
            end._link.senders[end] = None
            end._host._transports[end] = None
        server._loop.call_soon(server._accept, theirs, context=theirs._context)
        self._later(self._back.travel_us(0), self._syn_ack_arrives, ours)

    def _send_again(self) -> None:
        if not self._is_over():
            self._send()

    def _syn_ack_arrives(self, transport: SimTransport) -> None:
        self._limit.cancel()
        if self._is_over():
            transport._vanish(reset=not self._loop.is_dead)
        else:
            self._loop.call_soon(self._succeed, transport, context=self._context)

    def _succeed(self, transport: SimTransport) -> None:
        if self._is_over():
            transport._vanish(reset=True)
            return
        self._local.network.note("connect", transport._name)
        transport._start(self._factory())
        self.connected.set_result(transport)

    def _refused(self) -> None:
        self._limit.cancel()
        self._fail("connection refused: nothing listens there")

    def _time_out(self) -> None:
        self._fail(f"no answer within {self._there.config.connect_limit_ms} ms")

    def _fail(self, problem: str) -> None:
        if not self._is_over():
            host, port = self._target
            self._loop.call_soon(self._raise, ConnectFailed(f"{host}:{port}", problem))

    def _raise(self, error: ConnectFailed) -> None:
        if not self._is_over():
            self.connected.set_exception(error)


def _running_loop(network: SimNetwork) -> SimLoop:
    loop = asyncio.get_running_loop()
    if not isinstance(loop, SimLoop) or loop.timeline is not network.timeline:
        raise SimulationError("this SimNetwork belongs to another simulation")
    return loop
