"""RaftGroup, whole: real stores on simulated disks, real links on a simulated network; and a judge.

agreed          what one member holds as agreed, all do, byte for byte, for ever
acknowledged    what was answered True is agreed, at its place, and in its queue once
alone           never do two members serve at once
visible         nothing that is not agreed is in a queue
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
from typing import Any

from skylark.protocol.record import decode_records, pack_host
from skylark.replication.raft_group import RaftConfig, RaftGroup
from skylark.store import FlushDiskType, MessageStore, PutMessage, PutStatus, StoreConfig
from skylark.store.flusher import Flusher
from skylark.store.retention import Retention
from skylark.testing import SimNode
from skylark.testing.checks import eventually
from skylark.testing.cluster import SimCluster
from skylark.testing.files import SimFiles
from skylark.testing.transport import LinkConfig

PORT = 40911
FILE_BYTES = 8 << 10
FILES_KEPT = 64  # More than is written while a member is away.
TOPIC = "Agreed"
HOST = pack_host("10.0.9.9", 1)
CALM = LinkConfig(spike_chance=0, split_chance=0.2, merge_chance=0.2)


class GroupWorld:
    """One run."""

    make: Any = RaftGroup

    def __init__(
        self,
        seed: int,
        size: int = 3,
        *,
        link: LinkConfig = CALM,
        disk_latency_ms: int = 2,
        key: bytes | None = None,
        make: Any = RaftGroup,
        make_store: Any = MessageStore,
    ) -> None:
        self.cluster = SimCluster(seed, link=link, executor_latency_us=disk_latency_ms * 1000)
        self.rng = self.cluster.rng("world")
        self.key = key
        self.make = make
        self.make_store = make_store
        self.groups: dict[str, RaftGroup] = {}
        self.stores: dict[str, MessageStore] = {}
        self.nodes = {
            f"n{number}": self.cluster.add_node(
                f"n{number}", address=f"10.0.0.{number + 1}", files=new_disk()
            )
            for number in range(size)
        }
        self.peers = {name: (node.address, PORT) for name, node in self.nodes.items()}
        self.app = self.cluster.network.host("10.0.9.9", "app")
        self.agreed = bytearray()
        self._checked: dict[str, int] = {}
        self.acked: dict[bytes, int] = {}  # Body → where its record ends.
        self.sent = 0
        self.refused = 0
        self.starts: list[int] = []  # Where the members' logs begin, in the end.
        self.gap_ms = 30
        self.is_writing = True
        for node in self.nodes.values():
            node.start(self._member)

    def __enter__(self) -> GroupWorld:
        return self

    def __exit__(self, *_: object) -> None:
        self.cluster.close()

    def run(self, scenario: Any) -> Any:
        return self.cluster.run(scenario(self), until_ms=3_600_000)

    def spawn(self, coroutine: Any) -> asyncio.Task[Any]:
        """Something beside the scenario; what it raises ends the run."""
        return self.cluster.loop.create_task(coroutine)

    # Members.

    def config(self, name: str) -> RaftConfig:
        return RaftConfig(
            group="g", self_id=name, peers=self.peers, heartbeat_ms=100, election_ms=800,
            key=self.key, silence_ms=1_500,
        )  # fmt: skip

    async def _member(self, node: SimNode) -> None:
        assert node.files is not None
        config = StoreConfig(
            store_path_root_dir="/store",
            mapped_file_size_commit_log=FILE_BYTES,
            mapped_file_size_consume_queue=20 * 100,
            max_hash_slot_num=50,
            max_index_num=500,
            max_message_size=2 << 10,
            flush_disk_type=FlushDiskType.SYNC_FLUSH,
            flush_interval_consume_queue=3_000,
            flush_consume_queue_thorough_interval=5_000,
        )
        rng = random.Random(node.rng.random())
        with self.make_store.open(config, node.files, node.clock, is_member=True) as store:
            flusher = Flusher(store, node.clock)
            async with flusher.running():
                group = self.make(
                    self.config(node.name), store, flusher, files=node.files, clock=node.clock,
                    network=node.network, rng=rng, random_bytes=rng.randbytes,
                )  # fmt: skip
                async with group.running():
                    self._checked[node.name] = 0
                    self.groups[node.name], self.stores[node.name] = group, store
                    try:
                        await self._write_for_ever(node, group, store)
                    finally:
                        if self.groups.get(node.name) is group:
                            del self.groups[node.name], self.stores[node.name]

    async def _write_for_ever(self, node: SimNode, group: RaftGroup, store: MessageStore) -> None:
        """Whoever serves is written to; answers are noted as they come."""
        waiting: set[asyncio.Task[None]] = set()
        while True:
            await node.clock.sleep_ms(self.rng.randrange(1, 2 * self.gap_ms))
            if not group.is_serving or not self.is_writing:
                continue
            self.check_alone(node.name)
            for _ in range(self.rng.choice((1, 1, 5))):
                task = asyncio.create_task(self._write(group, store))
                waiting.add(task)
                task.add_done_callback(waiting.discard)

    async def _write(self, group: RaftGroup, store: MessageStore) -> None:
        self.sent += 1
        body = b"%06d" % self.sent + self.rng.randbytes(self.rng.randrange(1, 400))
        message = PutMessage(TOPIC, self.sent % 2, body, b"", store.clock.now_ms(), HOST, HOST)
        result = store.put([message])[0]
        if result.status is PutStatus.PUT_OK and await group.quorum.replicated(result.end):
            self.acked[body] = result.end
        else:
            self.refused += 1

    def lose_disk(self, node: SimNode) -> None:
        """Give a machine that is down a new, empty disk."""
        assert not node.is_running
        node._files = new_disk()

    def expire(self, name: str) -> None:
        """Let a member's retention take all but its newest files."""
        store = self.stores[name]
        files = store.log.mapped.files
        if len(files) > FILES_KEPT:
            kept_from = files[-FILES_KEPT].start
            retention = Retention(store, store.clock, undelivered_from=lambda: kept_from)
            retention.reconfigure(dataclasses.replace(store.config, file_reserved_time=0))
            retention.clean_soon()
            retention.clean()

    # What is asked.

    def running(self) -> dict[str, RaftGroup]:
        return {name: group for name, group in self.groups.items() if self.nodes[name].is_running}

    @property
    def server(self) -> str | None:
        serving = [name for name, group in self.running().items() if group.is_serving]
        return serving[0] if serving else None

    async def wait_serving(self, within_ms: int = 30_000) -> str:
        await eventually(
            lambda: self.server is not None, within_ms=within_ms, what="a member serves"
        )
        assert self.server is not None
        return self.server

    def is_level(self) -> bool:
        groups = self.running().values()
        return (
            len(groups) == len(self.nodes)
            and len({g.log.last for g in groups} | {g.committed for g in groups}) == 1
            and all(g.raft.may_vote for g in groups)
            and all(
                self.stores[n].dispatcher.position == g.committed for n, g in self.groups.items()
            )
        )

    async def wait_level(self, within_ms: int = 30_000) -> None:
        """Stop writing for as long as it takes."""
        self.is_writing = False
        await eventually(self.is_level, within_ms=within_ms, what="all members are level")
        self.is_writing = True

    # The judge.

    def check_alone(self, name: str) -> None:
        others = [n for n, g in self.running().items() if n != name and g.is_serving]
        assert not others, f"{name} and {others} serve"

    def look(self) -> None:
        """Compare what every member holds as agreed."""
        for name, group in self.running().items():
            store = self.stores[name]
            assert store.agreed is not None
            assert store.agreed <= group.committed <= group.log.last
            assert store.dispatcher.position <= store.agreed, "what is not agreed is visible"
            start = max(self._checked[name], store.log.start)
            end = group.committed
            at = start
            while at < end:
                size = min(end - at, FILE_BYTES - at % FILE_BYTES)
                piece = bytes(store.log.read(at, size) or b"")
                assert len(piece) == size
                if at + size > len(self.agreed):
                    self.agreed += piece[max(0, len(self.agreed) - at) :]
                assert self.agreed[at : at + size] == piece, f"{name} differs behind {at}"
                at += size
            self._checked[name] = max(start, end)

    def check_nothing_lost(self) -> None:
        """Everything acknowledged is in every member's queues, once."""
        self.look()
        for name in self.running():
            store = self.stores[name]
            found = self.held(store)
            lost = [
                body
                for body, end in self.acked.items()
                if found.get(body) != end and end > store.log.start
            ]
            assert not lost, f"{len(lost)} of {len(self.acked)} lost at {name}: {lost[0][:6]!r}"

    @staticmethod
    def held(store: MessageStore) -> dict[bytes, int]:
        found: dict[bytes, int] = {}
        for queue_id in range(2):
            offset = int(store.min_offset(TOPIC, queue_id))
            while (page := store.get(TOPIC, queue_id, offset, 32)).message_count:
                for record in decode_records(page.body):
                    assert record.queue_offset == offset
                    assert record.body not in found
                    found[record.body] = record.physical_offset + record.size_bytes
                    offset += 1
        return found


def new_disk() -> SimFiles:
    return SimFiles(page_bytes=512)
