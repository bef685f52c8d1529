"""A broker that is killed while it delivers delayed messages, over and over, on one store.

Clients send messages with delivery times and with delay levels all the while; kills fall when many
are due. Judged from the log, once everything is due:

    lost     an acknowledged message that was never delivered
    early    a copy that was stored before its time
    twice    a copy more than one, counted; a crash may repeat, the log should keep it from doing so

    python tests/integration/killed_timers.py --cycles 50 --seed 1
    python tests/integration/killed_timers.py --rate 1000 --seconds 10      lateness, no kills

The result is one line of JSON; exit status 1 if anything was lost or early.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from killed_broker import Nursery, free_port

import skylark
import skylark.broker.process  # So that a fork has it.
from skylark.clock import SystemClock
from skylark.net import AsyncioNetwork, Channels
from skylark.protocol.command import Command
from skylark.protocol.headers import SendMessageRequestV2
from skylark.protocol.record import decode_records
from skylark.store import MessageStore, OsFiles, StoreConfig

TOPIC = "Timed"
SENDERS = 4
SETTINGS = {
    "listenHost": "127.0.0.1",
    "brokerName": "broker-a",
    "messageDelayLevel": "1s 2s",
    "mappedFileSizeCommitLog": "1048576",
    "mappedFileSizeConsumeQueue": "20000",
    "mappedFileSizeTimerLog": "16384",
    "timerFlushIntervalMs": "150",
    "flushDelayOffsetInterval": "150",
    "maxHashSlotNum": "1000",
    "maxIndexNum": "20000",
    "diskSpaceAmpleBytes": "1048576",
    "advertisedAddressCheck": "false",
}
STORE = StoreConfig(
    mapped_file_size_commit_log=1 << 20,
    mapped_file_size_consume_queue=20_000,
    max_hash_slot_num=1_000,
    max_index_num=20_000,
    message_delay_level="1s 2s",
)


@dataclass
class Outcome:
    """What was sent, and what came of it."""

    acked: dict[str, int] = field(default_factory=dict)  # Unique key → when it is due.
    found: dict[str, list[int]] = field(default_factory=dict)  # Unique key → store times of copies.
    killed_in_delivery: int = 0

    def judge(self) -> dict[str, object]:
        lost = [key for key in self.acked if key not in self.found]
        early = [
            key
            for key, due_ms in self.acked.items()
            if any(at_ms < due_ms for at_ms in self.found.get(key, ()))
        ]
        copies = sum(map(len, self.found.values()))
        late = sorted(
            at_ms - due_ms
            for key, due_ms in self.acked.items()
            for at_ms in self.found.get(key, ())[:1]
        )
        return {
            "acked": len(self.acked),
            "lost": len(lost),
            "early": len(early),
            "twice": copies - len(self.found),
            "killed_in_delivery": self.killed_in_delivery,
            "late_p50_ms": _share(late, 0.50),
            "late_p99_ms": _share(late, 0.99),
            "late_max_ms": late[-1] if late else 0,
        }


def _share(values: list[int], share: float) -> int:
    return values[min(len(values) - 1, int(len(values) * share))] if values else 0


class Sender:
    """Sends messages with times, straight to the broker; what is not answered does not count."""

    def __init__(self, address: str, outcome: Outcome, rng: random.Random) -> None:
        self.address = address
        self.outcome = outcome
        self.rng = rng
        self.stopped = False
        self.count = 0
        self.channels = Channels(AsyncioNetwork(), SystemClock(), random.Random(1))

    async def run(self, number: int) -> None:
        """Send for ever."""
        while not self.stopped:
            self.count += 1
            key = f"U{number}-{self.count}"
            if self.rng.random() < 0.3:
                level = self.rng.randrange(1, 3)
                properties, delay_ms = f"DELAY\x01{level}", level * 1_000
            else:
                delay_ms = self.rng.randrange(50, 1_500)
                properties = f"TIMER_DELAY_MS\x01{delay_ms}"
            await self.send(key, properties, delay_ms)
            await asyncio.sleep(0.004)

    async def send(self, key: str, properties: str, delay_ms: int) -> None:
        """Send one; relative times count from when the broker has it, so from before the send."""
        header = SendMessageRequestV2(
            producer_group="p",
            topic=TOPIC,
            default_topic="TBW102",
            default_topic_queue_nums=4,
            queue_id=0,
            sys_flag=0,
            born_timestamp=int(time.time() * 1000),
            flag=0,
            properties=f"{properties}\x02UNIQ_KEY\x01{key}\x02",
            batch=False,
        )
        command = Command.request(310, header.to_fields(), key.encode())
        sent_ms = int(time.time() * 1000)
        try:
            answer = await self.channels.call(self.address, command, 3_000)
        except skylark.SkylarkError:
            await asyncio.sleep(0.01)
            return
        if answer.code == 0:
            self.outcome.acked[key] = sent_ms + delay_ms


class Run:
    """One store, clients that stay, and a broker that comes and goes."""

    def __init__(self, home: Path, nursery: Nursery, seed: int) -> None:
        self.home = home
        self.nursery = nursery
        self.rng = random.Random(seed)
        self.port = free_port()
        self.outcome = Outcome()

    def start_broker(self) -> int:
        """Start the broker; it serves a little later."""
        settings = {
            **SETTINGS, "storePathRootDir": str(self.home / "store"), "listenPort": str(self.port),
        }  # fmt: skip
        arguments = ["--log-dir", "-"]
        for name, value in settings.items():
            arguments += ["--set", f"{name}={value}"]
        return self.nursery.start("broker", arguments, self.home / "broker.log")

    async def wait_returned(self) -> None:
        """Wait until the broker takes connections."""
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
            return

    async def kills(self, cycles: int) -> None:
        """Kill the broker so many times, then let everything become due."""
        sender = Sender(f"127.0.0.1:{self.port}", self.outcome, self.rng)
        pid = self.start_broker()
        await self.wait_returned()
        async with sender.channels:
            tasks = [asyncio.ensure_future(sender.run(number)) for number in range(SENDERS)]
            for _ in range(cycles):
                await asyncio.sleep(self.rng.uniform(0.12, 0.5))
                now_ms = int(time.time() * 1000)
                recent = list(self.outcome.acked.values())[-800:]
                is_due = any(now_ms - 50 <= due_ms <= now_ms + 50 for due_ms in recent)
                self.outcome.killed_in_delivery += is_due
                os.kill(pid, signal.SIGKILL)
                self.nursery.wait(pid)
                pid = self.start_broker()
                await self.wait_returned()
            sender.stopped = True
            await asyncio.gather(*tasks)
            await asyncio.sleep(2.5)
        self.stop(pid)

    async def steady(self, rate: int, seconds: int) -> None:
        """Let so many messages a second become due, and see how late they are."""
        sender = Sender(f"127.0.0.1:{self.port}", self.outcome, self.rng)
        pid = self.start_broker()
        await self.wait_returned()
        async with sender.channels:
            total, start_ms = rate * seconds, int(time.time() * 1000) + 500
            start_ms += total // 4  # Time to send them all before the first is due, roughly.
            gate = asyncio.Semaphore(64)

            async def one(number: int) -> None:
                due_ms = start_ms + number * 1000 // rate
                async with gate:
                    key = f"S{number}"
                    now_ms = int(time.time() * 1000)
                    if due_ms > now_ms:
                        await sender.send(key, f"TIMER_DELIVER_MS\x01{due_ms}", due_ms - now_ms)
                        if key in self.outcome.acked:
                            self.outcome.acked[key] = due_ms

            await asyncio.gather(*(one(number) for number in range(total)))
            left_s = (start_ms + seconds * 1000) / 1000 - time.time()
            await asyncio.sleep(max(0, left_s) + 2)
        self.stop(pid)

    def stop(self, pid: int) -> None:
        """Stop the broker cleanly, and read what it has delivered."""
        os.kill(pid, signal.SIGTERM)
        code = self.nursery.wait(pid)
        assert code == 0, (self.home / "broker.log").read_text(errors="replace")[-3000:]
        config = dataclasses.replace(STORE, store_path_root_dir=str(self.home / "store"))
        with MessageStore.open(config, OsFiles(), SystemClock()) as store:
            offset = 0
            while (page := store.get(TOPIC, 0, offset, 32)).message_count:
                for message in decode_records(page.body):
                    self.outcome.found.setdefault(message.body.decode(), []).append(
                        message.stored_at_ms
                    )
                offset = page.next_offset


def main() -> int:
    """Run, judge, and print the outcome."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--cycles", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rate", type=int, default=0)
    parser.add_argument("--seconds", type=int, default=10)
    arguments = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="skylark-timers-"))
    nursery = Nursery(execute=False)
    try:
        run = Run(home, nursery, arguments.seed)
        if arguments.rate:
            asyncio.run(run.steady(arguments.rate, arguments.seconds))
        else:
            asyncio.run(run.kills(arguments.cycles))
        judged = {"cycles": 0 if arguments.rate else arguments.cycles, **run.outcome.judge()}
    finally:
        nursery.close()
        shutil.rmtree(home, ignore_errors=True)
    print(json.dumps(judged))
    return 1 if judged["lost"] or judged["early"] else 0


if __name__ == "__main__":
    sys.exit(main())
