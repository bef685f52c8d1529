"""A SYNC_MASTER and its replica as real processes; the master's disk is deleted again and again."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from broker_ports import free_port

from skylark.clock import SystemClock
from skylark.errors import BrokerError, TransportError
from skylark.net import AsyncioNetwork
from skylark.net.channel import Channels
from skylark.protocol.codes import RequestCode
from skylark.protocol.command import Command
from skylark.protocol.headers import SendMessageRequestV2
from skylark.protocol.record import decode_records
from skylark.remote import RemoteBroker, SendStatus

ROUNDS = 10
SENDERS = 8
QUEUES = 4
TOPIC = "Audited"
SMALL = {
    "mappedFileSizeCommitLog": "262144",
    "mappedFileSizeConsumeQueue": "20000",
    "maxHashSlotNum": "1000",
    "maxIndexNum": "20000",
    "diskSpaceAmpleBytes": "1048576",
    "listenHost": "127.0.0.1",
    "brokerIP1": "127.0.0.1",
    "brokerName": "group-a",
    "defaultTopicQueueNums": str(QUEUES),
    "advertisedAddressCheck": "false",
    "stopGraceMs": "0",
    "haClusterKey": "of this test",
}


class Server:
    """A command of ours in a process of its own."""

    def __init__(self, home: Path, *arguments: str) -> None:
        self.home = home
        self._arguments = arguments
        self._log = home.with_suffix(".log").open("ab")
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "skylark.cli", *self._arguments],
            stdout=self._log,
            stderr=self._log,
            env={**os.environ, "HOME": str(self.home)},
        )

    def end(self, number: int = signal.SIGKILL) -> None:
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait(30)
            self.process = None

    def close(self) -> None:
        self.end()
        self._log.close()


def broker(home: Path, name_server: int, port: int, **settings: str) -> Server:
    values = {**SMALL, "listenPort": str(port), "storePathRootDir": str(home / "store"), **settings}
    arguments = [word for key, value in values.items() for word in ("--set", f"{key}={value}")]
    return Server(home, "broker", "-n", f"127.0.0.1:{name_server}", *arguments, "--log-dir", "-")


class Audit:
    """Senders, and what became of what they sent."""

    def __init__(self) -> None:
        self.acked: dict[bytes, tuple[int, int]] = {}
        self.statuses: dict[str, int] = {}
        self._number = 0

    async def send_for_ever(self, master: RemoteBroker) -> None:
        while True:
            await self.send(master)
            await asyncio.sleep(0.002)

    async def send(self, master: RemoteBroker) -> str:
        self._number += 1
        body = b"%08d" % self._number + random.Random(self._number).randbytes(200)
        header = SendMessageRequestV2(
            producer_group="P",
            topic=TOPIC,
            default_topic="TBW102",
            default_topic_queue_nums=QUEUES,
            queue_id=self._number % QUEUES,
            sys_flag=0,
            born_timestamp=1,
            flag=0,
            properties="",
            reconsume_times=0,
            unit_mode=False,
            batch=False,
        )
        try:
            answer = await master.send(header, body, timeout_ms=5_000)
        except (TransportError, BrokerError) as error:
            status = type(error).__name__
        else:
            status = str(answer.status)
            if answer.status is SendStatus.SEND_OK:
                self.acked[body] = answer.queue_id, answer.queue_offset
        self.statuses[status] = self.statuses.get(status, 0) + 1
        return status

    async def wait_ok(self, master: RemoteBroker) -> float:
        """Wait until a send is acknowledged; return how long that took."""
        began = time.monotonic()
        while await self.send(master) != "SEND_OK":
            assert time.monotonic() - began < 30, self.statuses
            await asyncio.sleep(0.05)
        return time.monotonic() - began

    async def check(self, server: RemoteBroker) -> None:
        """Read everything back, and look for what was acknowledged."""
        held: dict[bytes, tuple[int, int]] = {}
        for queue_id in range(QUEUES):
            offset = 0
            while True:
                answer = await server.call(pull_request(queue_id, offset))
                if not answer.body:
                    break
                for record in decode_records(answer.body):
                    held[record.body] = queue_id, record.queue_offset
                offset = int(answer.fields["nextBeginOffset"])
        lost = [body[:8] for body, place in self.acked.items() if held.get(body) != place]
        assert not lost, f"{len(lost)} of {len(self.acked)} acknowledged are lost: {lost[:5]}"


def pull_request(queue_id: int, offset: int) -> Command:
    return Command.request(
        RequestCode.PULL_MESSAGE,
        {
            "consumerGroup": "auditors", "topic": TOPIC, "queueId": str(queue_id),
            "queueOffset": str(offset), "maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0",
            "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0",
        },
    )  # fmt: skip


def test_nothing_acknowledged_is_lost_when_the_masters_disk_is_deleted_ten_times(
    tmp_path: Path,
) -> None:
    ns_port, master_port, slave_port = free_port(), free_port(), free_port()
    for name in ("ns", "master", "slave"):
        (tmp_path / name).mkdir()
    name_server = Server(
        tmp_path / "ns", "namesrv", "-p", str(ns_port), "--set", "listenHost=127.0.0.1"
    )
    master = broker(tmp_path / "master", ns_port, master_port, brokerRole="SYNC_MASTER")
    slave = broker(tmp_path / "slave", ns_port, slave_port, brokerRole="SLAVE", brokerId="1")
    servers = (name_server, master, slave)
    audit = Audit()
    waits = []

    async def main() -> None:
        async with Channels(AsyncioNetwork(), SystemClock(), random.Random(1)) as channels:
            remote = RemoteBroker(channels, f"127.0.0.1:{master_port}")
            await audit.wait_ok(remote)
            for _ in range(ROUNDS):
                senders = [asyncio.create_task(audit.send_for_ever(remote)) for _ in range(SENDERS)]
                await asyncio.sleep(0.4)
                await asyncio.to_thread(master.end)  # Under load.
                for sender in senders:
                    sender.cancel()
                await asyncio.wait(senders)
                shutil.rmtree(tmp_path / "master" / "store")
                master.start()
                waits.append(await audit.wait_ok(remote))
                await audit.check(remote)
            await audit.check(RemoteBroker(channels, f"127.0.0.1:{slave_port}"))

    try:
        for server in servers:
            server.start()
        asyncio.run(main())
    finally:
        for server in servers:
            server.close()
    print(f"acknowledged {len(audit.acked)}, lost 0, back in {max(waits):.1f} s at most")
    print(audit.statuses)
    assert len(audit.acked) > 500
