"""mqnamesrv as a process on real sockets: start, stop, mistakes, restarts, outages."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from skylark.client.routes import RouteCache
from skylark.clock import SystemClock
from skylark.errors import BrokerError, TransportError
from skylark.model.topic import TopicConfig
from skylark.nameserver import NameServerConfig
from skylark.net import AsyncioNetwork, Channels
from skylark.protocol.command import Command
from skylark.remote import NameServers, RemoteNameServer
from skylark.testing.broker import SimulatedBroker

PATIENCE_S = 30
BOOT = "The Name Server boot success. serializeType=JSON"
ROOT = pathlib.Path(__file__).parents[2]


class Process:
    """One mqnamesrv, with its files in a directory of its own."""

    def __init__(self, directory: pathlib.Path, port: int = 0, **settings: object) -> None:
        self.directory = directory
        directory.mkdir(exist_ok=True)
        wanted = {
            "listenHost": "127.0.0.1",
            "kvConfigPath": directory / "kvConfig.json",
            **settings,
        }
        flags = [f"--set={key}={value}" for key, value in wanted.items()]
        self.command = [sys.executable, "-m", "skylark.cli.mqnamesrv", "-p", str(port), *flags]
        kept = {key: value for key, value in os.environ.items() if not key.startswith("SKYLARK_N")}
        self.environment = {**kept, "HOME": str(directory)}
        self.popen: subprocess.Popen[str] | None = None
        self.boot_line = ""

    def start(self) -> str:
        """Start it and return its address once it is ready."""
        self.popen = subprocess.Popen(
            self.command, env=self.environment, stdout=subprocess.PIPE, text=True
        )
        assert self.popen.stdout is not None
        self.boot_line = self.popen.stdout.readline().strip()
        assert self.boot_line.startswith(BOOT), self.boot_line
        self.address = self.boot_line.split("address ")[1].split(",")[0]
        return self.address

    def fail(self) -> str:
        """Start it where it cannot start; return what it says."""
        done = subprocess.run(
            self.command,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode == 2, done
        assert done.stdout == ""
        assert done.stderr.count("\n") == 1, done.stderr
        assert "Traceback" not in done.stderr
        return done.stderr

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Signal it and return its exit code."""
        assert self.popen is not None
        self.popen.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        assert self.popen is not None
        code = self.popen.wait(PATIENCE_S)
        assert self.popen.stdout is not None
        self.popen.stdout.close()
        self.popen = None
        return code


Make = Callable[..., Process]


@pytest.fixture
def make(tmp_path: pathlib.Path) -> Iterator[Make]:
    made: list[Process] = []

    def maker(name: str = "ns", port: int = 0, **settings: object) -> Process:
        made.append(Process(tmp_path / name, port, **settings))
        return made[-1]

    yield maker
    for process in made:
        if process.popen is not None:
            process.stop(signal.SIGKILL)


@contextlib.asynccontextmanager
async def channels() -> AsyncIterator[Channels]:
    async with Channels(AsyncioNetwork(), SystemClock(), random.Random(1)) as made:
        yield made


def broker(addresses: list[str], **options: object) -> SimulatedBroker:
    defaults: dict[str, object] = {
        "address": "127.0.0.1:10911",
        "topics": [TopicConfig("T", 4, 4)],
        **options,
    }
    return SimulatedBroker(
        addresses,
        network=AsyncioNetwork(),
        clock=SystemClock(),
        rng=random.Random(2),
        **defaults,  # type: ignore[arg-type]
    )


async def eventually(check: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not check():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.02)


# Start and stop.


def test_it_says_when_it_is_ready_answers_and_writes_a_log(make: Make) -> None:
    process = make()
    address = process.start()

    async def ask() -> None:
        async with channels() as made:
            assert await RemoteNameServer(made, address).get_topics() == ()

    asyncio.run(ask())
    assert process.boot_line == f"{BOOT}, address {address}"
    assert process.stop() == 0
    assert (process.directory / "logs/rocketmqlogs/namesrv.log").exists()


def test_its_port_is_9876_unless_told_otherwise() -> None:
    assert NameServerConfig().listen_port == 9876


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_and_closes_its_connections(make: Make, number: int) -> None:
    process = make()
    host, _, port = process.start().rpartition(":")
    with socket.create_connection((host, int(port))) as peer:
        peer.settimeout(PATIENCE_S)
        time.sleep(0.05)
        assert process.stop(number) == 0
        assert peer.recv(1) == b""


def test_a_second_signal_does_not_wait_for_a_peer_that_reads_nothing(make: Make) -> None:
    process = make(drainTimeoutMs=60_000)
    host, _, port = process.start().rpartition(":")
    frame = _frame(Command.request(319))
    with socket.create_connection((host, int(port))) as peer:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        peer.settimeout(0.5)
        with contextlib.suppress(TimeoutError):
            while True:
                peer.sendall(frame * 100)
        assert process.popen is not None
        process.popen.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        assert process.popen.poll() is None, "it did not wait for its peer"
        began = time.monotonic()
        assert process.stop() == 1
        assert time.monotonic() - began < 10


# Mistakes.


def test_a_port_that_is_taken_is_one_line_and_exit_code_2(make: Make) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = make(port=port).fail()
    assert f"127.0.0.1:{port} is taken" in said
    assert "-p" in said


def test_a_bad_setting_is_one_line_and_exit_code_2(make: Make) -> None:
    said = make(brokerExpiryMs="soon").fail()
    assert "brokerExpiryMs=soon" in said


def test_a_directory_that_cannot_be_used_is_one_line_and_exit_code_2(make: Make) -> None:
    process = make()
    (process.directory / "file").write_text("")
    said = make(kvConfigPath=process.directory / "file" / "kvConfig.json").fail()
    assert "file" in said
    said = make(logDir=process.directory / "file" / "logs").fail()
    assert "file" in said


def test_damaged_settings_are_one_line_and_exit_code_2(make: Make) -> None:
    process = make()
    (process.directory / "kvConfig.json").write_text("{")
    (process.directory / "kvConfig.json.bak").write_text("]")
    said = process.fail()
    assert "kvConfig.json.bak" in said
    assert "restore the file from a backup, or remove both" in said


# What it knows.


def test_a_broker_registers_with_all_name_servers_at_once_and_they_share_nothing(
    make: Make,
) -> None:
    first, second = make("ns1").start(), make("ns2").start()

    async def scene() -> None:
        async with channels() as made:
            one, two = RemoteNameServer(made, first), RemoteNameServer(made, second)
            async with (
                broker([first, second], name="both"),
                broker([first], name="one", address="127.0.0.1:20911"),
            ):
                assert [data.broker_name for data in (await one.get_route("T")).brokers] == [
                    "both",
                    "one",
                ]
                assert [data.broker_name for data in (await two.get_route("T")).brokers] == ["both"]
            for server in (one, two):
                with pytest.raises(BrokerError) as caught:
                    await server.get_route("T")
                assert caught.value.code == 17

    asyncio.run(scene())


def test_every_operators_request_works_over_a_real_connection(make: Make) -> None:
    address = make().start()

    async def scene() -> None:
        async with channels() as made:
            server = RemoteNameServer(made, address)
            topics = [TopicConfig("T", 4, 4), TopicConfig("U", 1, 1, sys_flag=3)]
            async with broker([address], topics=topics, cluster="c", compressed=False):
                info = await server.get_cluster_info()
                assert dict(info.clusters) == {"c": ("broker-a",)}
                assert await server.get_topics() == ("T", "U")
                assert await server.get_topics_of_cluster("c") == ("T", "U")
                assert (await server.get_system_topics()).topics == ("broker-a", "c")
                assert await server.get_unit_topics() == ("U",)
                assert await server.get_unit_sub_topics() == ("U",)
                assert await server.get_unit_sub_not_unit_topics() == ()
                assert await server.wipe_write_perm("broker-a") == 2
                assert not (await server.get_route("T")).queues[0].is_writable
                assert await server.add_write_perm("broker-a") == 2
                assert (await server.get_route("T")).queues[0].is_writable
                await server.delete_topic("T", cluster="c")
                assert await server.get_topics() == ("U",)
            assert await server.get_kv("n", "k") is None
            assert await server.get_kv_namespace("n") is None
            await server.put_kv("n", "k", "v;=ü")
            assert await server.get_kv("n", "k") == "v;=ü"
            assert await server.get_kv_namespace("n") == {"k": "v;=ü"}
            await server.delete_kv("n", "k")
            assert await server.get_kv_namespace("n") == {}
            assert (await server.get_config())["orderMessageEnable"] == "false"
            await server.update_config({"orderMessageEnable": "true"})
            assert (await server.get_config())["orderMessageEnable"] == "true"
            with pytest.raises(BrokerError) as caught:
                await server.update_config({"kvConfigPath": "/tmp/x"})
            assert caught.value.code == 16

    asyncio.run(scene())


def test_a_broker_that_dies_leaves_the_routes_with_its_connection(make: Make) -> None:
    address = make().start()
    code = (
        "import asyncio, random\n"
        "from skylark.clock import SystemClock\n"
        "from skylark.model.topic import TopicConfig\n"
        "from skylark.net import AsyncioNetwork\n"
        "from skylark.testing.broker import SimulatedBroker\n"
        "async def main():\n"
        f"    async with SimulatedBroker(['{address}'], network=AsyncioNetwork(),"
        " clock=SystemClock(), rng=random.Random(), address='127.0.0.1:1',"
        " topics=[TopicConfig('T')]):\n"
        "        print('up', flush=True)\n"
        "        await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as dying:
        assert dying.stdout is not None
        assert dying.stdout.readline() == b"up\n"

        async def scene() -> None:
            async with channels() as made:
                server = RemoteNameServer(made, address)
                assert await server.get_topics() == ("T",)
                dying.kill()
                while await server.get_topics() != ():
                    await asyncio.sleep(0.02)

        asyncio.run(asyncio.wait_for(scene(), PATIENCE_S))


def test_settings_survive_kill_9_and_a_restart(make: Make) -> None:
    process = make()

    async def put(address: str) -> None:
        async with channels() as made:
            await RemoteNameServer(made, address).put_kv("n", "k", "v")

    async def read(address: str) -> str | None:
        async with channels() as made:
            return await RemoteNameServer(made, address).get_kv("n", "k")

    asyncio.run(put(process.start()))
    process.stop(signal.SIGKILL)
    assert asyncio.run(read(process.start())) == "v"
    assert process.stop() == 0
    assert (process.directory / "kvConfig.json").read_text() == '{"configTable":{"n":{"k":"v"}}}'


# When name servers go.


def test_clients_and_brokers_outlive_their_name_servers(make: Make) -> None:
    """NS-04, NS-08, NS-16, NS-17: two of three killed, then all; then one comes back empty."""
    processes = [make(f"ns{i}") for i in range(3)]
    addresses = [process.start() for process in processes]
    dead = "127.0.0.1:1"

    async def scene() -> None:
        async with channels() as made:
            servers = NameServers(made, [dead, *addresses], random.Random(0))
            cache = RouteCache(servers, SystemClock())
            async with broker(addresses) as registered:
                route = await cache.get("T")
                for process in processes[:2]:
                    process.stop(signal.SIGKILL)
                assert await cache.refresh("T")
                processes[2].stop(signal.SIGKILL)
                assert not await cache.refresh("T")
                assert await cache.get("T") == route
                with pytest.raises(TransportError):
                    await cache.get("other")
                registered.confirmed_ms.clear()
                processes[0].command[4] = addresses[0].rpartition(":")[2]
                processes[0].start()
                await eventually(
                    lambda: addresses[0] in registered.confirmed_ms, "the broker came back"
                )
                assert await cache.refresh("T")

    asyncio.run(scene())


def test_a_client_keeps_one_connection_to_one_name_server(make: Make) -> None:
    addresses = [make(f"ns{i}").start() for i in range(2)]

    async def scene() -> None:
        async with channels() as made, broker(addresses):
            servers = NameServers(made, addresses, random.Random(3))
            for _ in range(20):
                await servers.get_route("T")
            other = next(address for address in addresses if address != servers.chosen)
            assert made.to(str(servers.chosen)).is_connected
            assert not made.to(other).is_connected

    asyncio.run(scene())


# The address service.


def test_clients_can_ask_by_http_where_the_name_servers_are(make: Make) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = make(addressServicePort=port)
    address = process.start()
    assert process.boot_line.endswith(f", address service 127.0.0.1:{port}")
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    for path in ("/rocketmq/nsaddr", "/rocketmq/nsaddr-unit?nofix=1"):
        connection.request("GET", path)
        answer = connection.getresponse()
        assert (answer.status, answer.read().decode()) == (200, f"{address}\n")
    connection.request("GET", "/")
    assert connection.getresponse().status == 404
    connection.close()
    assert process.stop() == 0


def test_the_address_service_hands_out_the_list_it_is_given(make: Make) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = make(addressServicePort=port, namesrvAddr="a:9876;b:9876")
    process.start()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    connection.request("GET", "/rocketmq/nsaddr")
    assert connection.getresponse().read() == b"a:9876;b:9876\n"
    connection.close()


# The first thing a new user runs.


def test_the_demo_shows_a_route_and_ends_well() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "nameserver_demo.py")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "broker-a  127.0.0.1:10911  master  8            8             RW-" in done.stdout


def _frame(command: Command) -> bytes:
    from skylark.protocol.frame import encode_frames

    return encode_frames([command])
