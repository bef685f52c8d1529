"""A broker that is killed under load, over and over, on one store; and clients that stay.

Producers, a consumer and a committer of offsets run all the time; the broker comes and goes under
them. Some kills fall on a broker that serves, some on one that has not yet recovered. Judged:

    acknowledged    every receipt's message lies where the receipt says, after all kills
    order           of a queue: offsets without gaps, nothing twice that was sent once
    handled         the consumer has had every acknowledged message
    offsets         after each kill as far as in the file, which has what was committed more than a
                    save interval before the kill
    recovery        producers and consumer work again within 5 s of the broker's return

    python tests/integration/killed_broker.py --cycles 100 --seed 1
    python tests/integration/killed_broker.py --cycles 20 --exec        real commands, slower

Brokers are forked from a process that has imported everything and has one thread, so that a start
takes a few milliseconds instead of a second. The result is one line of JSON; exit status 1 if
anything was found.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import re
import shutil
import signal
import socket
import struct
import sys
import tempfile
import time
import traceback
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from broker_ports import free_port

import skylark
import skylark.broker.process  # So that a fork has it.
import skylark.logs
import skylark.nameserver.app
from skylark import Message, MessageQueue, ReceivedMessage
from skylark.cli import broker as broker_command
from skylark.cli import namesrv as namesrv_command
from skylark.model.topic import TopicConfig

with contextlib.suppress(ImportError):
    import uvloop  # noqa: F401

TOPIC = "Killed"
QUEUES = 4
SENDERS = 8
SAVE_INTERVAL_MS = 100
SLACK_MS = 3_000  # Of a busy machine, beyond the save interval.
LONG_LIFE_S = 0.3 + (SAVE_INTERVAL_MS + SLACK_MS) / 1000
LONG_LIFE_EVERY = 40
RECOVERY_S = 5.0
EARLY = 0.3  # Share of kills that do not wait for the broker to serve.
SETTINGS = (
    "listenHost=127.0.0.1",
    "brokerName=broker-a",
    "flushDiskType=SYNC_FLUSH",
    f"flushConsumerOffsetInterval={SAVE_INTERVAL_MS}",
    "mappedFileSizeCommitLog=262144",
    "mappedFileSizeConsumeQueue=20000",
    "maxHashSlotNum=1000",
    "maxIndexNum=20000",
    "diskSpaceAmpleBytes=1048576",
)


# The process that forks servers.


class Nursery:
    """Asks a process of one thread for servers; each is a child of that process."""

    def __init__(self, *, execute: bool) -> None:
        ours, theirs = socket.socketpair()
        self._pid = os.fork()
        if self._pid == 0:
            ours.close()
            _run_nursery(theirs, execute)
        theirs.close()
        self._socket = ours

    def start(self, kind: str, arguments: list[str], log: Path) -> int:
        """Start a server and return its process id."""
        request = json.dumps({"kind": kind, "arguments": arguments, "log": str(log)}).encode()
        self._socket.sendall(struct.pack(">i", len(request)) + request)
        return int(struct.unpack(">i", _receive(self._socket, 4))[0])

    def wait(self, pid: int) -> int:
        """Wait for a server's end; return its exit code, or minus the signal."""
        request = json.dumps({"wait": pid}).encode()
        self._socket.sendall(struct.pack(">i", len(request)) + request)
        return int(struct.unpack(">i", _receive(self._socket, 4))[0])

    def close(self) -> None:
        """End the process; it ends what it has started."""
        self._socket.close()
        os.waitpid(self._pid, 0)


def _receive(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = connection.recv(count - len(data))
        if not more:
            raise EOFError
        data += more
    return data


def _run_nursery(connection: socket.socket, execute: bool) -> NoReturn:
    children: set[int] = set()
    try:
        while True:
            size = struct.unpack(">i", _receive(connection, 4))[0]
            request: dict[str, Any] = json.loads(_receive(connection, size))
            if "wait" in request:
                _, status = os.waitpid(request["wait"], 0)
                children.discard(request["wait"])
                connection.sendall(struct.pack(">i", os.waitstatus_to_exitcode(status)))
                continue
            pid = os.fork()
            if pid == 0:
                connection.close()
                _become(request["kind"], request["arguments"], request["log"], execute)
            children.add(pid)
            connection.sendall(struct.pack(">i", pid))
    except EOFError:
        for pid in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        os._exit(0)


def _become(kind: str, arguments: list[str], log: str, execute: bool) -> NoReturn:
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    if execute:
        os.execv(sys.executable, [sys.executable, "-m", "skylark.cli", kind, *arguments])
    command = {"broker": broker_command, "namesrv": namesrv_command}[kind]
    try:
        code = command.main(arguments)
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    os._exit(code)


# The history, and its judge.


@dataclass
class History:
    """What clients were told, and what was found to be wrong."""

    receipts: list[tuple[int, int, bytes]] = field(default_factory=list)
    sent_once: set[bytes] = field(default_factory=set)
    handled: set[bytes] = field(default_factory=set)
    handled_count: int = 0
    commits: dict[int, list[tuple[float, int]]] = field(default_factory=lambda: defaultdict(list))
    commit_count: int = 0
    floor: dict[int, int] = field(default_factory=dict)
    last_offset: dict[int, int] = field(default_factory=dict)
    send_recovery_s: list[float] = field(default_factory=list)
    handle_recovery_s: list[float] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)

    def judge_queues(self, found: dict[int, list[tuple[int, bytes]]]) -> None:
        """Hold the queues, as they are at the end, to the receipts."""
        for queue_id, messages in found.items():
            offsets = [offset for offset, _ in messages]
            if offsets != list(range(len(offsets))):
                self.findings.append(f"queue {queue_id} has gaps: {offsets[:5]}...")
        bodies = [body for messages in found.values() for _, body in messages]
        counts: dict[bytes, int] = defaultdict(int)
        for body in bodies:
            counts[body] += 1
        twice = [body for body in self.sent_once if counts[body] > 1]
        if twice:
            self.findings.append(f"{len(twice)} messages are there twice that were sent once")
        lying = {(queue, offset): body for queue in found for offset, body in found[queue]}
        lost = [one for one in self.receipts if lying.get((one[0], one[1])) != one[2]]
        if lost:
            self.findings.append(f"{len(lost)} acknowledged messages lost, first {lost[0][:2]}")

    def killed(self, at: float) -> None:
        """Note what must have been saved by then; what is younger may be gone."""
        due = at - (SAVE_INTERVAL_MS + SLACK_MS) / 1000
        for queue_id, commits in self.commits.items():
            sure = [offset for committed_at, offset in commits if committed_at <= due]
            self.floor[queue_id] = max([self.floor.get(queue_id, 0), *sure])
            commits.clear()

    def judge_offset(self, queue_id: int, offset: int, *, saved: int) -> None:
        """Hold a committed offset after a restart to the file, and to what was due in it."""
        if offset < saved:
            self.findings.append(f"queue {queue_id}: offset {offset}, the file had {saved}")
        if offset < self.floor.get(queue_id, 0):
            self.findings.append(
                f"queue {queue_id}: offset {offset}, {self.floor[queue_id]} was committed long "
                "before a kill"
            )


# The run.


class Run:
    """One store, one name server, clients that stay, and a broker that comes and goes."""

    def __init__(self, home: Path, nursery: Nursery, seed: int) -> None:
        self.home = home
        self.nursery = nursery
        self.rng = random.Random(seed)
        self.history = History()
        self.port = free_port()
        self.namesrv_port = free_port()
        self.returned_at: float | None = None  # When the broker accepted again.
        self.serving = 0  # Counts returns, so that a message says in which life it was sent.
        self.sent_again = asyncio.Event()
        self.handled_again = asyncio.Event()
        self.offsets_checked = asyncio.Event()  # Until then, nobody commits.
        self.stopped = False
        self.early_kills = 0
        self.longest_cycle_s = 0.0
        self.saved_at_kill: dict[int, int] = {}
        self.saves = 0  # Lives in which the file of offsets was written.

    def start_broker(self) -> int:
        """Start the broker; it serves a little later."""
        arguments = ["-n", f"127.0.0.1:{self.namesrv_port}", "--log-dir", "-"]
        words = (f"storePathRootDir={self.home / 'store'}", f"listenPort={self.port}", *SETTINGS)
        for word in words:
            arguments += ["--set", word]
        return self.nursery.start("broker", arguments, self.home / "broker.log")

    async def wait_returned(self) -> None:
        """Wait until the broker takes connections, and note the time."""
        deadline = time.monotonic() + 60
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", self.port)
            except OSError:
                if time.monotonic() > deadline:
                    log = (self.home / "broker.log").read_text(errors="replace")
                    raise AssertionError(f"the broker did not come back:\n{log[-3000:]}") from None
                await asyncio.sleep(0.005)
                continue
            writer.close()
            self.returned_at = time.monotonic()
            self.serving += 1
            self.sent_again.clear()
            self.handled_again.clear()
            return

    async def send(self, producer: skylark.Producer, number: int) -> None:
        """Send for ever; half of the senders choose the queue, and so send once."""
        history = self.history
        mine = MessageQueue(TOPIC, "broker-a", number % QUEUES)
        count = 0
        while not self.stopped:
            count += 1
            life = self.serving
            head = struct.pack(">iii", life, number, count)
            body = head * self.rng.randrange(2, 120)
            chooses = number % 2 == 0
            if chooses:
                history.sent_once.add(body)
            try:
                receipt = await producer.send(Message(TOPIC, body), queue=mine if chooses else None)
            except skylark.SkylarkError:
                await asyncio.sleep(0.02)
                continue
            place = (receipt.queue.queue_id, receipt.queue_offset)
            history.receipts.append((*place, body))
            history.last_offset[place[0]] = max(history.last_offset.get(place[0], 0), place[1])
            if life == self.serving and not self.sent_again.is_set() and self.returned_at:
                history.send_recovery_s.append(time.monotonic() - self.returned_at)
                self.sent_again.set()

    async def handle(self, message: ReceivedMessage) -> None:
        """The consumer's handler."""
        self.history.handled.add(message.body)
        self.history.handled_count += 1
        (life,) = struct.unpack_from(">i", message.body)
        if life == self.serving and not self.handled_again.is_set() and self.returned_at:
            self.history.handle_recovery_s.append(time.monotonic() - self.returned_at)
            self.handled_again.set()

    async def commit(self, mq: skylark.Client) -> None:
        """Commit, for a group of its own, how far each queue is known to be."""
        broker = mq.session.broker(f"127.0.0.1:{self.port}")
        while not self.stopped:
            await self.offsets_checked.wait()
            for queue_id, last in list(self.history.last_offset.items()):
                queue = MessageQueue(TOPIC, "broker-a", queue_id)
                try:
                    await broker.update_consumer_offset("auditors", queue, last + 1)
                except skylark.SkylarkError:
                    break
                self.history.commits[queue_id].append((time.monotonic(), last + 1))
                self.history.commit_count += 1
            await asyncio.sleep(0.01)

    def saved_offsets(self) -> dict[int, int]:
        """What the broker's file has for that group."""
        path = self.home / "store" / "config" / "consumerOffset.json"
        if not path.exists():
            return {}
        table = _loads(path.read_text())["offsetTable"].get(f"{TOPIC}@auditors", {})
        return {int(queue_id): int(offset) for queue_id, offset in table.items()}

    async def check_offsets(self, mq: skylark.Client) -> None:
        """Ask the broker that came back for the offsets."""
        broker = mq.session.broker(f"127.0.0.1:{self.port}")
        for queue_id in range(QUEUES):
            queue = MessageQueue(TOPIC, "broker-a", queue_id)
            offset = await _patiently(lambda q=queue: broker.query_consumer_offset("auditors", q))
            saved = self.saved_at_kill.get(queue_id, 0)
            self.history.judge_offset(queue_id, offset or 0, saved=saved)

    async def cycles(self, mq: skylark.Client, count: int, pid: int) -> int:
        """Kill and start so many times; return the process id of the broker that is left."""
        await self.wait_returned()
        for number in range(count):
            began = time.monotonic()
            lives_long = number % LONG_LIFE_EVERY == LONG_LIFE_EVERY // 2
            if self.returned_at is None and not lives_long and self.rng.random() < EARLY:
                self.early_kills += 1
                await asyncio.sleep(self.rng.random() * 0.15)
            else:
                if self.returned_at is None:
                    await self.wait_returned()
                async with asyncio.timeout(60):
                    await self.sent_again.wait()
                    await self.handled_again.wait()
                if self.serving > 1:
                    await self.check_offsets(mq)
                self.offsets_checked.set()
                await asyncio.sleep(LONG_LIFE_S if lives_long else self.rng.random() * 0.15)
            self.offsets_checked.clear()
            saved = self.saved_offsets()
            self.saves += saved != self.saved_at_kill
            self.saved_at_kill = saved
            os.kill(pid, signal.SIGKILL)
            self.history.killed(time.monotonic())
            self.nursery.wait(pid)
            self.returned_at = None
            pid = self.start_broker()
            self.longest_cycle_s = max(self.longest_cycle_s, time.monotonic() - began)
        await self.wait_returned()
        return pid

    async def main(self, cycles: int) -> None:
        """The whole story."""
        arguments = ["-p", str(self.namesrv_port), "--host", "127.0.0.1", "--log-dir", "-"]
        arguments += ["--set", f"kvConfigPath={self.home / 'kv.json'}"]
        self.nursery.start("namesrv", arguments, self.home / "namesrv.log")
        pid = self.start_broker()
        history = self.history
        async with skylark.connect(f"127.0.0.1:{self.namesrv_port}") as mq:
            broker = mq.session.broker(f"127.0.0.1:{self.port}")
            await _patiently(lambda: broker.put_topic(TopicConfig(TOPIC, QUEUES, QUEUES)))
            await _patiently(lambda: _require(mq.session.routes.refresh(TOPIC)))
            consumer = mq.consumer(
                "readers", TOPIC, self.handle, consume_from="first", pull_retry_ms=100
            )
            async with mq.producer("writers") as producer, consumer:
                tasks = [
                    asyncio.ensure_future(self.send(producer, number)) for number in range(SENDERS)
                ]
                tasks.append(asyncio.ensure_future(self.commit(mq)))
                pid = await self.cycles(mq, cycles, pid)
                self.stopped = True
                self.offsets_checked.set()
                await asyncio.gather(*tasks)
                wanted = {body for _, _, body in history.receipts}
                deadline = time.monotonic() + 30
                while not wanted <= history.handled and time.monotonic() < deadline:
                    await asyncio.sleep(0.02)
                missed = len(wanted - history.handled)
                if missed:
                    history.findings.append(f"{missed} acknowledged messages were not handled")
            history.judge_queues(await self.read_all(mq))
        os.kill(pid, signal.SIGTERM)
        code = self.nursery.wait(pid)
        if code != 0:
            history.findings.append(f"the broker ended with {code} when asked to stop")

    async def read_all(self, mq: skylark.Client) -> dict[int, list[tuple[int, bytes]]]:
        """Every message of every queue."""
        found: dict[int, list[tuple[int, bytes]]] = {}
        async with mq.pull_consumer("judges") as puller:
            for queue_id in range(QUEUES):
                queue = MessageQueue(TOPIC, "broker-a", queue_id)
                found[queue_id] = []
                offset = 0
                while True:
                    got = await _patiently(lambda q=queue, o=offset: puller.pull(q, offset=o))
                    if not got.messages:
                        break
                    found[queue_id] += [(one.queue_offset, one.body) for one in got.messages]
                    offset = got.next_begin_offset
        return found


async def _patiently(ask: Callable[[], Any]) -> Any:
    """Ask until there is an answer: the broker may just be coming back."""
    deadline = time.monotonic() + 30
    while True:
        try:
            return await ask()
        except skylark.SkylarkError:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.02)


async def _require(answer: Any) -> None:
    if not await answer:
        raise skylark.SkylarkError("no route yet")


def _loads(text: str) -> Any:
    """RocketMQ's files have numbers as keys."""
    return json.loads(re.sub(r"([{,]\s*)(\d+)\s*:", r'\1"\2":', text))


def percentile(values: list[float], share: float) -> float:
    """The value below which this share of them lies; 0 of none."""
    return round(sorted(values)[int(share * (len(values) - 1))], 3) if values else 0.0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cycles", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--exec", action="store_true", help="start real commands")
    arguments = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="killed-broker-"))
    nursery = Nursery(execute=arguments.exec)
    began = time.monotonic()
    try:
        run = Run(home, nursery, arguments.seed)
        asyncio.run(run.main(arguments.cycles))
    finally:
        nursery.close()
    history = run.history
    slow = [s for s in (*history.send_recovery_s, *history.handle_recovery_s) if s > RECOVERY_S]
    if slow:
        history.findings.append(f"recovered only after {max(slow):.1f} s")
    outcome = {
        "cycles": arguments.cycles,
        "early_kills": run.early_kills,
        "acked": len(history.receipts),
        "handled": history.handled_count,
        "commits": history.commit_count,
        "saves": run.saves,
        "send_recovery_p50_s": percentile(history.send_recovery_s, 0.5),
        "send_recovery_s_max": percentile(history.send_recovery_s, 1),
        "handle_recovery_p50_s": percentile(history.handle_recovery_s, 0.5),
        "handle_recovery_s_max": percentile(history.handle_recovery_s, 1),
        "cycle_s_max": round(run.longest_cycle_s, 2),
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
