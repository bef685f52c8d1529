"""The sending half over real sockets: both loops, TLS aside, threads, and forks."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
import uvloop

import skylark
import skylark.sync
from skylark import Message, SendReceipt
from skylark.clock import SystemClock
from skylark.errors import ClientClosed, ClientError, ConfigError, SendFailed
from skylark.net import AsyncioNetwork
from skylark.testing.fake_broker import FakeBroker, FakeNameServer, Step, with_template

TOPIC = "Orders"


class Servers:
    """A name server and a broker on loopback, served by a thread of their own."""

    def __init__(self) -> None:
        self.broker = FakeBroker(
            AsyncioNetwork(), SystemClock(), "127.0.0.1", port=0, topics=with_template()
        )
        self.name_server = FakeNameServer(AsyncioNetwork(), "127.0.0.1", port=0)
        self.name_server.brokers.append(self.broker)
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def address(self) -> str:
        return self.name_server.address

    def __enter__(self) -> Servers:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *error: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)
        self._loop.close()

    def do(self, action: Callable[[], object]) -> None:
        """Do something on the servers' loop, and wait for it."""
        done = threading.Event()

        def run() -> None:
            action()
            done.set()

        self._loop.call_soon_threadsafe(run)
        assert done.wait(10)

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        async with AsyncExitStack() as parts:
            await parts.enter_async_context(self.broker)
            await parts.enter_async_context(self.name_server)
            self._ready.set()
            await self._stop.wait()


@pytest.fixture
def servers() -> Iterator[Servers]:
    with Servers() as running:
        yield running


Runner = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Runner:
    if request.param == "uvloop":
        return uvloop.run
    return asyncio.run


def test_ten_thousand_messages_in_every_way(servers: Servers, run: Runner) -> None:
    async def main() -> None:
        async with skylark.connect(servers.address) as mq:
            assert mq.client_id.startswith("127.0.0.1@")
            async with mq.producer("one-by-one") as producer:
                for start in range(0, 2_000, 100):
                    await asyncio.gather(
                        *(
                            producer.send(Message(TOPIC, f"s{n}".encode()))
                            for n in range(start, start + 100)
                        )
                    )
            async with mq.producer("batched", linger_ms=1) as producer:
                receipts = await asyncio.gather(
                    *(producer.send(Message(TOPIC, f"a{n}".encode())) for n in range(8_000))
                )
                assert len({receipt.message_id for receipt in receipts}) == 8_000

    run(main())
    bodies = servers.broker.messages(TOPIC)
    assert len(bodies) == len(set(bodies)) == 10_000


def test_large_bodies_pass_the_transport_s_limits(servers: Servers, run: Runner) -> None:
    async def main() -> None:
        async with (
            skylark.connect(servers.address) as mq,
            mq.producer("large", compress_msg_body_over_howmuch=1 << 30) as producer,
        ):
            body = bytes(2_000_000)
            await asyncio.gather(*(producer.send(Message(TOPIC, body)) for _ in range(20)))

    run(main())
    assert len(servers.broker.stored) == 20


def test_a_oneway_send_takes_microseconds(servers: Servers, run: Runner) -> None:
    async def main() -> None:
        async with skylark.connect(servers.address) as mq, mq.producer("logs") as producer:
            await producer.send(Message(TOPIC, b"connects"))
            times = []
            for _ in range(500):
                began = time.perf_counter()
                await producer.send_oneway(Message(TOPIC, b"line"))
                times.append(time.perf_counter() - began)
            assert sorted(times)[250] < 0.001
            await producer.send(Message(TOPIC, b"last"))

    run(main())
    assert len(servers.broker.stored) == 502


def test_nobody_there_is_an_error_that_says_so(run: Runner) -> None:
    async def main() -> None:
        async with skylark.connect("127.0.0.1:1") as mq, mq.producer("shop") as producer:
            with pytest.raises(ClientError, match="check namesrv_addr"):
                await producer.send(Message(TOPIC, b"x"))

    run(main())


# Without await.


def test_the_sync_client_serves_many_threads(servers: Servers) -> None:
    with skylark.sync.connect(servers.address) as mq, mq.producer("shop") as producer:
        failures: list[BaseException] = []

        def work(number: int) -> None:
            try:
                for n in range(50):
                    producer.send(Message(TOPIC, f"{number} {n}".encode()))
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures
    bodies = servers.broker.messages(TOPIC)
    assert len(bodies) == len(set(bodies)) == 400


class Callback:
    def __init__(self) -> None:
        self.receipts: list[SendReceipt] = []
        self.errors: list[Exception] = []

    def on_success(self, receipt: SendReceipt) -> None:
        self.receipts.append(receipt)

    def on_exception(self, error: Exception) -> None:
        self.errors.append(error)


def test_the_sync_client_has_every_way_to_send(servers: Servers) -> None:
    callback = Callback()
    with skylark.sync.connect(servers.address) as mq:
        mq.producer("early")  # Made and never started: harmless.
        with mq.producer("shop") as producer:
            queue = producer.fetch_queues(TOPIC)[0]
            assert producer.send(Message(TOPIC, b"1"), queue=queue).queue == queue
            producer.send_oneway(Message(TOPIC, b"2"))
            assert len(producer.send_batch([Message(TOPIC, b"3"), Message(TOPIC, b"4")])) == 2
            future = producer.send_async(Message(TOPIC, b"5"), callback)
            assert future.result(10) == callback.receipts[0]
            servers.do(lambda: servers.broker.script.append(13))
            failed = producer.send_async(Message(TOPIC, b"6"), callback)
            with pytest.raises(SendFailed):
                failed.result(10)
            assert len(callback.errors) == 1
            producer.flush()
        with pytest.raises(ClientClosed):
            producer.send(Message(TOPIC, b"x"))
        producer.start()
        producer.send(Message(TOPIC, b"7"))
    with pytest.raises(ClientClosed):
        mq.fetch_queues(TOPIC)
    with pytest.raises(ClientClosed):
        producer.send(Message(TOPIC, b"x"))
    assert sorted(servers.broker.messages(TOPIC)) == [b"1", b"2", b"3", b"4", b"5", b"7"]


def test_a_callback_that_waits_for_its_own_thread_is_told_so(servers: Servers) -> None:
    with skylark.sync.connect(servers.address) as mq, mq.producer("shop") as producer:

        class Blocking(Callback):
            def on_success(self, receipt: SendReceipt) -> None:
                try:
                    producer.send(Message(TOPIC, b"again"))
                except RuntimeError as error:
                    self.errors.append(error)

        callback = Blocking()
        producer.send_async(Message(TOPIC, b"x"), callback).result(10)
        assert "runs on its thread" in str(callback.errors[0])


def test_wrong_settings_of_a_sync_client_are_refused_at_once(servers: Servers) -> None:
    with pytest.raises(ConfigError):
        skylark.sync.connect(servers.address, nonsense=1)
    with pytest.raises(ConfigError):
        skylark.sync.connect("not:an:address:at all")


def test_a_sync_client_recovers_from_a_lost_connection(servers: Servers) -> None:
    with skylark.sync.connect(servers.address) as mq, mq.producer("shop") as producer:
        producer.send(Message(TOPIC, b"1"))
        servers.do(lambda: servers.broker.script.append(Step.DROP))
        producer.send(Message(TOPIC, b"2"))
        assert servers.broker.messages(TOPIC) == [b"1", b"2"]


FORKING = """
    import os, sys, threading
    import skylark.sync
    from skylark import Message

    with skylark.sync.connect(sys.argv[1]) as mq, mq.producer("shop", linger_ms=1) as producer:
        producer.send(Message("Orders", b"before"))
        busy = threading.Event()

        def keep_busy():
            while not busy.is_set():
                producer.send(Message("Orders", b"noise"))

        thread = threading.Thread(target=keep_busy)
        thread.start()
        children = []
        for number in range(3):
            pid = os.fork()
            if pid == 0:
                for n in range(20):
                    producer.send(Message("Orders", b"child %d %d" % (number, n)))
                sys.stdout.write(mq.client_id + chr(10))
                sys.stdout.flush()
                producer.close()
                mq.close()
                os._exit(0)
            children.append(pid)
        codes = [os.waitpid(pid, 0)[1] for pid in children]
        busy.set()
        thread.join()
        producer.send(Message("Orders", b"after"))
        print(mq.client_id)
        sys.exit(max(codes))
"""


def test_a_producer_made_before_a_fork_works_in_parent_and_children(servers: Servers) -> None:
    # As a web server does it: connect first, fork workers then, threads running meanwhile.
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(FORKING), servers.address],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert len(set(done.stdout.split())) == 4
    bodies = servers.broker.messages(TOPIC)
    assert bodies.count(b"before") == bodies.count(b"after") == 1
    wanted = {b"child %d %d" % (number, n) for number in range(3) for n in range(20)}
    assert wanted <= set(bodies)
    assert sum(body.startswith(b"child") for body in bodies) == 60


def test_importing_the_package_loads_no_client() -> None:
    program = (
        "import sys, skylark; assert 'skylark.client.producer' not in sys.modules;"
        "assert 'asyncio' not in sys.modules; skylark.Message;"
        "assert 'skylark.client.producer' not in sys.modules; skylark.connect;"
        "assert 'typer' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True)
    assert done.returncode == 0, done.stderr
