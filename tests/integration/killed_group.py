"""Three brokers in a Raft group, as processes: killed, without power, without their disks.

Producers, a consumer and somebody who watches committed offsets run all the time. In turn:

    kills    the leader is killed, and started again
    cuts     the power of all three is cut at once: what no disk has is gone (ext4 images)
    disks    a follower is killed, its disk is deleted, and it comes back

Judged: every receipt's message lies where the receipt says; the consumer has had it; committed
offsets never go back; writes are taken again within 10 s; the logs of all three are the same, byte
for byte; a member without its disk is filled again and may vote again.

    python tests/integration/killed_group.py --kills 10 --cuts 3 --disks 1

Servers are forked, see killed_broker.py. The result is one line of JSON; exit status 1 if anything
was found.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import shutil
import signal
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from broker_ports import free_port
from killed_broker import History, Nursery, percentile

import skylark
import skylark.broker.raft_mode
import skylark.replication.raft_group  # So that a fork has it.
from skylark import Message, MessageQueue, ReceivedMessage
from skylark.model.topic import TopicConfig

sys.path.insert(0, str(Path(__file__).parents[1] / "crash"))
from killed_writer import can_cut_power, cut_power, mounted, write_back_some

TOPIC = "Agreed"
NAME = "group-a"
QUEUES = 4
SENDERS = 6
FILE_BYTES = 4 << 20
OUTAGE_S_MAX = 10.0
SETTINGS = (
    "listenHost=127.0.0.1",
    "brokerIP1=127.0.0.1",
    f"brokerName={NAME}",
    f"mappedFileSizeCommitLog={FILE_BYTES}",
    "mappedFileSizeConsumeQueue=200000",
    "maxHashSlotNum=1000",
    "maxIndexNum=20000",
    "diskSpaceAmpleBytes=1048576",
    "flushConsumerOffsetInterval=500",
    "advertisedAddressCheck=false",
    "enableDLegerCommitLog=true",
    "haClusterKey=of this test",
    "stopGraceMs=0",
)


class Group:
    """Three members, their name server, and the clients."""

    def __init__(self, home: Path, nursery: Nursery, seed: int) -> None:
        self.home = home
        self.nursery = nursery
        self.rng = random.Random(seed)
        self.history = History()
        self.namesrv_port = free_port()
        self.ports = [free_port() for _ in range(3)]
        self.raft_ports = [free_port() for _ in range(3)]
        self.pids: dict[int, int] = {}
        self.stopped = False
        self.last_ack = 0.0
        self.outages_s: list[float] = []
        self.killed_s: list[float] = []  # Those after a kill.
        self.told: dict[int, int] = {}
        self.answers = 0

    # Processes.

    def place(self, number: int) -> Path:
        """Where a member's disk is."""
        return self.home / f"n{number}" / "mnt"

    def start(self, number: int) -> None:
        peers = ";".join(f"n{n}-127.0.0.1:{port}" for n, port in enumerate(self.raft_ports))
        words = (
            *SETTINGS,
            f"dLegerPeers={peers}",
            f"dLegerSelfId=n{number}",
            f"listenPort={self.ports[number]}",
            f"storePathRootDir={self.place(number) / 'store'}",
        )
        arguments = ["-n", f"127.0.0.1:{self.namesrv_port}", "--log-dir", "-"]
        for word in words:
            arguments += ["--set", word]
        log = self.home / f"n{number}.log"
        self.pids[number] = self.nursery.start("broker", arguments, log)

    def end(self, number: int, how: int = signal.SIGKILL) -> int:
        pid = self.pids.pop(number)
        os.kill(pid, how)
        return self.nursery.wait(pid)

    async def figures(self, mq: skylark.Client, number: int) -> dict[str, str]:
        """What a member says of itself; nothing where it cannot be asked."""
        try:
            broker = mq.session.broker(f"127.0.0.1:{self.ports[number]}")
            return dict(await broker.get_runtime_info(timeout_ms=1_000))
        except skylark.SkylarkError:
            return {}

    async def wait_leader(self, mq: skylark.Client) -> int:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            for number in self.pids:
                if (await self.figures(mq, number)).get("haRole") == "RAFT_LEADER":
                    return number
            await asyncio.sleep(0.02)
        raise AssertionError("no leader within 30 s")

    async def wait_level(self, mq: skylark.Client) -> None:
        """Until all members have nearly the same, and may vote."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            known = [await self.figures(mq, number) for number in range(3)]
            ends = [int(one.get("commitLogMaxOffset", "-1")) for one in known]
            roles = [one.get("haRole", "") for one in known]
            votes = [one.get("raftMayVote", "true") for one in known]
            near = max(ends) - min(ends) < 1 << 20 and min(ends) > 0
            if near and "RAFT_LEADER" in roles and votes == ["true"] * 3:
                return
            await asyncio.sleep(0.05)
        raise AssertionError(f"the members are not level: {known}")

    # Clients.

    async def send(self, producer: skylark.Producer, number: int) -> None:
        count = 0
        while not self.stopped:
            count += 1
            body = struct.pack(">ii", number, count) * self.rng.randrange(2, 120)
            try:
                receipt = await producer.send(Message(TOPIC, body))
            except skylark.SkylarkError:
                await asyncio.sleep(0.02)
                continue
            now = time.monotonic()
            self.last_ack = now
            place = (receipt.queue.queue_id, receipt.queue_offset)
            self.history.receipts.append((*place, body))
            self.history.last_offset[place[0]] = max(
                self.history.last_offset.get(place[0], 0), place[1]
            )
            await asyncio.sleep(0.002)

    async def handle(self, message: ReceivedMessage) -> None:
        self.history.handled.add(message.body)
        self.history.handled_count += 1

    async def watch_offsets(self, mq: skylark.Client) -> None:
        """Commit for a group of its own, and hold every answer to those before."""
        while not self.stopped:
            await asyncio.sleep(0.05)
            address = mq.session.master_address(NAME)
            if address is None:
                continue
            broker = mq.session.broker(address)
            for queue_id, last in list(self.history.last_offset.items()):
                queue = MessageQueue(TOPIC, NAME, queue_id)
                before = self.told.get(queue_id, 0)
                try:
                    found = await broker.query_consumer_offset("auditors", queue, timeout_ms=2_000)
                    if found is not None:
                        self.answers += 1
                        if found < before:
                            self.history.findings.append(
                                f"queue {queue_id}: offset {found} after {before}"
                            )
                        self.told[queue_id] = max(self.told.get(queue_id, 0), found)
                    await broker.update_consumer_offset(
                        "auditors", queue, last + 1, timeout_ms=2_000
                    )
                except skylark.SkylarkError:
                    break
                self.told[queue_id] = max(self.told.get(queue_id, 0), last + 1)
                self.history.commit_count += 1

    async def wait_writes(self, since: float) -> None:
        """Until a send has succeeded that began after something happened; note how long it took."""
        while self.last_ack <= since + 0.001:
            if time.monotonic() - since > 60:
                raise AssertionError("no write was taken within 60 s")
            await asyncio.sleep(0.005)
        self.outages_s.append(self.last_ack - since)
        if self.outages_s[-1] > OUTAGE_S_MAX:
            self.history.findings.append(f"writes were taken again after {self.outages_s[-1]:.1f}s")

    # What happens.

    async def kill_leader(self, mq: skylark.Client) -> None:
        number = await self.wait_leader(mq)
        self.end(number)
        began = time.monotonic()
        await asyncio.sleep(0.05)  # Answers that were on their way have arrived.
        await self.wait_writes(max(began, self.last_ack))
        self.outages_s[-1] = self.last_ack - began
        self.start(number)
        await self.wait_level(mq)

    async def cut_all(self, mq: skylark.Client, disks: Disks) -> None:
        for pid in self.pids.values():
            os.kill(pid, signal.SIGSTOP)  # So that nothing is said after the cut.
        await asyncio.sleep(0.05)
        began = self.last_ack
        for number in range(3):
            write_back_some(str(self.place(number)), self.rng)
            cut_power(str(self.place(number)))
        for number in list(self.pids):
            self.end(number)
        disks.remount()
        again = time.monotonic()
        for number in range(3):
            self.start(number)
        await self.wait_writes(max(began, again))
        await self.wait_level(mq)

    async def delete_disk(self, mq: skylark.Client) -> None:
        leader = await self.wait_leader(mq)
        number = (leader + 1) % 3
        self.end(number)
        shutil.rmtree(self.place(number) / "store")
        self.start(number)
        await self.wait_level(mq)
        # It counts again: without it, and without one of the others, there would be no majority.
        other = (leader + 2) % 3
        self.end(other)
        began = time.monotonic()
        await self.wait_writes(began)
        self.start(other)
        await self.wait_level(mq)

    async def main(self, kills: int, cuts: int, disks: int, images: Disks) -> None:
        arguments = ["-p", str(self.namesrv_port), "--host", "127.0.0.1", "--log-dir", "-"]
        arguments += ["--set", f"kvConfigPath={self.home / 'kv.json'}"]
        self.nursery.start("namesrv", arguments, self.home / "namesrv.log")
        for number in range(3):
            self.start(number)
        history = self.history
        async with skylark.connect(f"127.0.0.1:{self.namesrv_port}") as mq:
            leader = await self.wait_leader(mq)
            broker = mq.session.broker(f"127.0.0.1:{self.ports[leader]}")
            await broker.put_topic(TopicConfig(TOPIC, QUEUES, QUEUES))
            while not await mq.session.routes.refresh(TOPIC):
                await asyncio.sleep(0.02)
            consumer = mq.consumer(
                "readers", TOPIC, self.handle, consume_from="first", pull_retry_ms=100
            )
            async with mq.producer("writers") as producer, consumer:
                tasks = [
                    asyncio.ensure_future(self.send(producer, number)) for number in range(SENDERS)
                ]
                tasks.append(asyncio.ensure_future(self.watch_offsets(mq)))
                await asyncio.sleep(0.5)
                for _ in range(kills):
                    await self.kill_leader(mq)
                self.killed_s = list(self.outages_s)
                for _ in range(cuts):
                    await self.cut_all(mq, images)
                for _ in range(disks):
                    await self.delete_disk(mq)
                self.stopped = True
                await asyncio.gather(*tasks)
                wanted = {body for _, _, body in history.receipts}
                deadline = time.monotonic() + 30
                while not wanted <= history.handled and time.monotonic() < deadline:
                    await asyncio.sleep(0.02)
                missed = len(wanted - history.handled)
                if missed:
                    history.findings.append(f"{missed} acknowledged messages were not handled")
            found = await self.read_all(mq)
            # At least once: what was not answered was sent again.
            history.judge_queues(found)
            await self.wait_level(mq)
            leader = await self.wait_leader(mq)
            order = [n for n in range(3) if n != leader] + [leader]
        await asyncio.sleep(0.5)
        for number in order:
            code = self.end(number, signal.SIGTERM)
            if code != 0:
                history.findings.append(f"n{number} ended with {code} when asked to stop")
        self.compare_logs()

    async def read_all(self, mq: skylark.Client) -> dict[int, list[tuple[int, bytes]]]:
        found: dict[int, list[tuple[int, bytes]]] = {}
        async with mq.pull_consumer("judges") as puller:
            for queue_id in range(QUEUES):
                queue = MessageQueue(TOPIC, NAME, queue_id)
                found[queue_id] = []
                offset = 0
                deadline = time.monotonic() + 30
                while True:
                    try:
                        got = await puller.pull(queue, offset=offset)
                    except skylark.SkylarkError:
                        if time.monotonic() > deadline:
                            raise
                        await asyncio.sleep(0.05)
                        continue
                    if not got.messages:
                        break
                    found[queue_id] += [(one.queue_offset, one.body) for one in got.messages]
                    offset = got.next_begin_offset
        return found

    def compare_logs(self) -> None:
        """The logs of all three, which have stopped: none says anything that another does not."""
        contents = []
        for number in range(3):
            folder = self.place(number) / "store" / "commitlog"
            files = {path.name: path for path in folder.iterdir() if path.name.isdigit()}
            contents.append(files)
        for name in sorted(contents[0].keys() & contents[1].keys() & contents[2].keys()):
            first, *others = (files[name].read_bytes() for files in contents)
            for number, other in enumerate(others, 1):
                differs = _first_difference(first, other)
                # The member that stopped first may lack the end; blank is blank.
                if differs is not None and any(first[differs:]) and any(other[differs:]):
                    self.history.findings.append(f"logs of n0 and n{number} differ at {differs}")


def _first_difference(one: bytes, other: bytes) -> int | None:
    if one == other:
        return None
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high) // 2
        if one[: middle + 1] == other[: middle + 1]:
            low = middle + 1
        else:
            high = middle
    return low


class Disks:
    """The file systems of the members; ordinary folders where none can be mounted."""

    def __init__(self, roots: Iterable[Path], *, real: bool) -> None:
        self._roots = list(roots)
        self._real = real
        self._stack = contextlib.ExitStack()

    def mount(self) -> None:
        for root in self._roots:
            root.mkdir(exist_ok=True)
            if self._real:
                self._stack.enter_context(mounted(str(root)))
            else:
                (root / "mnt").mkdir()

    def remount(self) -> None:
        self.close()
        self.mount()

    def close(self) -> None:
        self._stack.close()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--cuts", type=int, default=3)
    parser.add_argument("--disks", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    real = arguments.cuts > 0 and can_cut_power()
    home = Path(tempfile.mkdtemp(prefix="killed-group-"))
    disks = Disks((home / f"n{n}" for n in range(3)), real=real)
    disks.mount()
    nursery = Nursery(execute=False)
    began = time.monotonic()
    group = Group(home, nursery, arguments.seed)
    history = group.history
    try:
        cuts = arguments.cuts if real else 0
        asyncio.run(group.main(arguments.kills, cuts, arguments.disks, disks))
    except AssertionError as error:
        history.findings.append(str(error))
    finally:
        nursery.close()
        disks.close()
    outcome = {
        "kills": arguments.kills,
        "cuts": cuts,
        "acked": len(history.receipts),
        "handled": history.handled_count,
        "commits": history.commit_count,
        "offset_answers": group.answers,
        "failover_p50_s": round(statistics.median(group.killed_s), 3) if group.killed_s else 0,
        "failover_s_max": percentile(group.killed_s, 1),
        "seconds": round(time.monotonic() - began, 1),
        "findings": history.findings,
    }
    if history.findings:
        outcome["kept"] = str(home)
    else:
        shutil.rmtree(home)
    print(json.dumps(outcome))
    return 1 if history.findings else 0


if __name__ == "__main__":
    sys.exit(main())
