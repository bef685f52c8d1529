"""Half messages: sent, ended, checked, given up; the records they leave; restarts in between."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from broker_world import BrokerWorld, Client, records

from skylark.broker.pending_halves import PendingHalves
from skylark.broker.transactions import TransactionService
from skylark.errors import BrokerError, CallTimeout
from skylark.model.message import OffsetId, StoredMessage, TransactionType
from skylark.model.topic import HALF_TOPIC, OP_HALF_TOPIC, TRANS_CHECK_MAX_TIME_TOPIC
from skylark.net import Handler
from skylark.protocol.bodies import HalfMessageList
from skylark.protocol.codes import RequestCode, ResponseCode
from skylark.protocol.command import Command
from skylark.protocol.exchange import AnyRequest, Peer
from skylark.protocol.headers import CheckTransactionStateRequest
from skylark.protocol.message_id import parse_offset_id
from skylark.protocol.record import decode_record
from skylark.store import PutResult, PutStatus

GROUP = "transfers"
COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0


class Half:
    """A half message as its producer knows it."""

    def __init__(self, answer: Command) -> None:
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        self.physical_offset = parse_offset_id(answer.fields["msgId"]).physical_offset
        self.queue_offset = int(answer.fields["queueOffset"])


async def send_half(
    client: Client,
    body: bytes = b"hello",
    *,
    group: str = GROUP,
    key: str | None = "K1",
    topic: str = "TopicTest",
    queue_id: int = 1,
    **properties: str,
) -> Half:
    marks = {"TRAN_MSG": "true", "PGROUP": group, **properties}
    if key is not None:
        marks["UNIQ_KEY"] = key
    return Half(await client.send(topic, body, queue_id=queue_id, properties=marks, sys_flag=0x4))


async def end(client: Client, half: Half, how: int, **changes: object) -> Command:
    fields: dict[str, object] = {
        "producerGroup": GROUP,
        "tranStateTableOffset": half.queue_offset,
        "commitLogOffset": half.physical_offset,
        "commitOrRollback": how,
        "fromTransactionCheck": False,
        "msgId": "K1",
        **changes,
    }
    return await client.call(RequestCode.END_TRANSACTION, fields)


class Checked:
    """A client that is asked about half messages, and what it was asked."""

    client: Client

    def __init__(self) -> None:
        self.checks: list[tuple[CheckTransactionStateRequest, StoredMessage]] = []
        self.answer: int = UNKNOWN

    async def take(self, request: AnyRequest, peer: Peer) -> None:
        header: CheckTransactionStateRequest = request.header
        half = decode_record(request.body)
        self.checks.append((header, half))
        if self.answer != UNKNOWN:
            await self.client.oneway(
                RequestCode.END_TRANSACTION,
                {
                    "producerGroup": half.properties["PGROUP"],
                    "tranStateTableOffset": header.tran_state_table_offset,
                    "commitLogOffset": header.commit_log_offset,
                    "commitOrRollback": self.answer,
                    "fromTransactionCheck": True,
                    "msgId": header.msg_id,
                },
            )


@contextlib.asynccontextmanager
async def member(
    world: BrokerWorld, client_id: str = "member", group: str = GROUP
) -> AsyncIterator[Checked]:
    checked = Checked()
    check = Handler(CheckTransactionStateRequest, checked.take)
    async with world.connected(client_id, {RequestCode.CHECK_TRANSACTION_STATE: check}) as client:
        checked.client = client
        await client.heartbeat(producers=(group,))
        beating = asyncio.create_task(beat(client, group))
        yield checked
        beating.cancel()


async def beat(client: Client, group: str) -> None:
    while True:
        await asyncio.sleep(30)
        await client.heartbeat(producers=(group,))


async def visible(client: Client, topic: str = "TopicTest", queue_id: int = 1) -> list[bytes]:
    """What a consumer would get of a queue."""
    found: list[bytes] = []
    while True:
        answer = await client.pull(topic, queue_id=queue_id, offset=len(found))
        if answer.code != ResponseCode.SUCCESS:
            return found
        found += [message.body for message in records(answer)]


def in_store(world: BrokerWorld, topic: str, queue_id: int = 0) -> list[StoredMessage]:
    """Every message of a queue, the broker's own topics too."""
    found = world.parts.store.get(topic, queue_id, 0, 1_000)
    return [decode_record(record) for record in found.records()]


def test_a_half_message_is_seen_by_nobody_until_it_is_committed(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving() as client:
            half = await send_half(client, b"money")
            assert await visible(client) == []
            assert (await client.pull(HALF_TOPIC)).code == ResponseCode.NO_PERMISSION
            assert (await client.pull(OP_HALF_TOPIC)).code in (
                ResponseCode.NO_PERMISSION,
                ResponseCode.TOPIC_NOT_EXIST,
            )
            assert (await end(client, half, COMMIT)).code == ResponseCode.SUCCESS
            assert await visible(client) == [b"money"]

    world.run(main)


def test_a_rollback_is_never_seen_and_its_record_stays_in_the_log(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving() as client:
            half = await send_half(client)
            assert (await end(client, half, ROLLBACK)).code == ResponseCode.SUCCESS
            await world.clock.sleep_ms(3_600_000)
            assert await visible(client) == []
            assert world.parts.store.get_by_physical_offset(half.physical_offset) is not None

    world.run(main)


def test_the_records_are_those_of_apache(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving() as client:
            await client.send("TopicTest", b"before", queue_id=1)
            half = await send_half(client, b"money", TAGS="TagA", WAIT="true")
            await end(client, half, COMMIT)
            stored = in_store(world, HALF_TOPIC)[0]
            assert (stored.queue_offset, stored.sys_flag & 0xC) == (half.queue_offset, 0)
            assert stored.properties["REAL_TOPIC"] == "TopicTest"
            assert stored.properties["REAL_QID"] == "1"
            assert stored.properties["TRAN_MSG"] == "true"
            op = in_store(world, OP_HALF_TOPIC)[0]
            assert (op.body, op.tag) == (b"0", "d")
            real = in_store(world, "TopicTest", 1)[1]
            assert TransactionType.of(real.sys_flag) is TransactionType.COMMIT
            assert real.prepared_transaction_offset == half.physical_offset
            assert real.properties["TAGS"] == "TagA"
            assert real.born_at_ms == stored.born_at_ms
            assert real.queue_offset == 1
            topics = world.parts.topics.topics
            assert topics[HALF_TOPIC].write_queue_nums == 1

    world.run(main)


def test_ending_twice_is_the_same_as_once(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving() as client:
            committed = await send_half(client, b"1", key="K1")
            rolled_back = await send_half(client, b"2", key="K2")
            for _ in range(3):
                assert (await end(client, committed, COMMIT)).code == ResponseCode.SUCCESS
                assert (await end(client, rolled_back, ROLLBACK)).code == ResponseCode.SUCCESS
            assert await visible(client) == [b"1"]

    world.run(main)


@pytest.mark.parametrize("restarts", [False, True])
def test_what_has_ended_cannot_end_another_way(world: BrokerWorld, restarts: bool) -> None:
    async def main() -> None:
        async with world.serving() as client:
            committed = await send_half(client, b"1", key="K1")
            rolled_back = await send_half(client, b"2", key="K2")
            await end(client, committed, COMMIT)
            await end(client, rolled_back, ROLLBACK)
            if not restarts:
                await refused(client)
            await world.clock.sleep_ms(10_000)
        if restarts:
            async with world.serving() as client:
                await refused(client)

    async def refused(client: Client) -> None:
        halves = in_store(world, HALF_TOPIC)
        first, second = (
            Half(
                Command(
                    0,
                    fields={"msgId": half.offset_id, "queueOffset": str(half.queue_offset)},
                )
            )
            for half in halves
        )
        answer = await end(client, first, ROLLBACK)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "committed already" in (answer.remark or "")
        answer = await end(client, second, COMMIT)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert (await end(client, first, COMMIT)).code == ResponseCode.SUCCESS
        assert await visible(client) == [b"1"]

    world.run(main)


def test_an_end_must_fit_its_half_message_in_every_field(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving() as client:
            plain = await client.send("TopicTest", b"plain", queue_id=1)
            place = parse_offset_id(plain.fields["msgId"]).physical_offset
            half = await send_half(client)
            other = await send_half(client, key="K2")
            wrong: list[tuple[dict[str, object], str]] = [
                ({"producerGroup": "thieves"}, "producer group wrong"),
                ({"tranStateTableOffset": other.queue_offset}, "commit log offset wrong"),
                ({"commitLogOffset": other.physical_offset}, "commit log offset wrong"),
                ({"commitLogOffset": place}, "commit log offset wrong"),
                ({"commitLogOffset": half.physical_offset + 1}, "commit log offset wrong"),
                ({"commitLogOffset": -1}, "commit log offset wrong"),
                ({"tranStateTableOffset": 77}, "no half message 77"),
                ({"tranStateTableOffset": -1}, "no half message -1"),
                ({"commitOrRollback": 4}, "commitOrRollback is 4"),
            ]
            for changes, words in wrong:
                answer = await end(client, half, COMMIT, **changes)
                assert answer.code == ResponseCode.SYSTEM_ERROR, changes
                assert words in (answer.remark or ""), (changes, answer.remark)
            assert await visible(client) == [b"plain"]
            assert (await end(client, half, COMMIT)).code == ResponseCode.SUCCESS
            assert await visible(client) == [b"plain", b"hello"]

    world.run(main)


def test_a_record_inside_of_a_body_is_no_half_message(world: BrokerWorld) -> None:
    """Whoever knows the format could send a body that looks like a half message."""

    async def main() -> None:
        async with world.serving() as client:
            half = await send_half(client)
            fake = bytes(world.parts.store.get_by_physical_offset(half.physical_offset) or b"")
            sent = await client.send("TopicTest", fake, queue_id=1)
            at = parse_offset_id(sent.fields["msgId"]).physical_offset
            for inside in range(60, 100):
                answer = await end(client, half, COMMIT, commitLogOffset=at + inside)
                assert answer.code == ResponseCode.SYSTEM_ERROR

    world.run(main)


def test_a_half_message_that_could_never_end_is_refused(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving() as client:
            answer = await client.send(properties={"TRAN_MSG": "true"}, sys_flag=4)
            assert answer.code == ResponseCode.MESSAGE_ILLEGAL
            assert "PGROUP" in (answer.remark or "")
            for bits in (4, 8, 12):
                answer = await client.send(properties={"PGROUP": GROUP}, sys_flag=bits)
                assert answer.code == ResponseCode.MESSAGE_ILLEGAL
                assert "TRAN_MSG" in (answer.remark or "")
        async with world.serving(reject_transaction_message=True) as client:
            answer = await client.send(properties={"TRAN_MSG": "true", "PGROUP": GROUP})
            assert answer.code == ResponseCode.NO_PERMISSION

    world.run(main)


def test_a_delayed_half_message_waits_from_its_commit_on(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving() as client, member(world):
            half = await send_half(client, b"later", DELAY="3")  # 10 s
            await world.clock.sleep_ms(30_000)
            assert await visible(client) == []
            assert (await end(client, half, COMMIT)).code == ResponseCode.SUCCESS
            await world.clock.sleep_ms(9_000)
            assert await visible(client) == []
            await world.clock.sleep_ms(1_200)
            assert await visible(client) == [b"later"]

    world.run(main)


def test_a_half_message_with_a_time_waits_for_it_after_its_commit(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving() as client, member(world):
            at_ms = world.clock.now_ms() + 20_000
            half = await send_half(client, b"later", TIMER_DELIVER_MS=str(at_ms))
            late = await send_half(client, b"late", key="K2", TIMER_DELIVER_MS=str(at_ms))
            assert (await end(client, half, COMMIT)).code == ResponseCode.SUCCESS
            await world.clock.sleep_ms(19_000)
            assert await visible(client) == []
            await world.clock.sleep_ms(2_000)
            assert await visible(client) == [b"later"]
            assert (await end(client, late, COMMIT)).code == ResponseCode.SUCCESS
            assert await visible(client) == [b"later", b"late"]

    world.run(main)


# Checks.


def test_a_half_message_is_checked_after_six_seconds_and_then_every_sixty(
    world: BrokerWorld,
) -> None:
    async def main() -> None:
        async with world.serving() as client, member(world) as asked:
            half = await send_half(client, b"money", TAGS="TagA")
            sent_ms = world.clock.monotonic_ms()
            times = []
            for _ in range(4):
                count = len(asked.checks)
                while len(asked.checks) == count and world.clock.monotonic_ms() < sent_ms + 400_000:
                    await world.clock.sleep_ms(10)
                times.append(world.clock.monotonic_ms() - sent_ms)
            for number, at_ms in enumerate(times):
                assert 0 <= at_ms - 6_000 - 60_000 * number < 200, times
            header, message = asked.checks[0]
            assert (message.topic, message.queue_id, message.body) == ("TopicTest", 1, b"money")
            assert header.msg_id == header.transaction_id == "K1"
            assert header.offset_msg_id == str(
                OffsetId(message.store_host, header.commit_log_offset)
            )
            # The question is about a copy; both places still mean the same transaction.
            assert header.commit_log_offset > half.physical_offset
            assert (await end(client, half, COMMIT)).code == ResponseCode.SUCCESS
            await world.clock.sleep_ms(3_600_000)
            assert len(asked.checks) == 4
            assert await visible(client) == [b"money"]

    world.run(main)


@pytest.mark.parametrize(("answer", "seen"), [(COMMIT, [b"hello"]), (ROLLBACK, [])])
def test_the_answer_to_a_check_ends_the_transaction(
    world: BrokerWorld, answer: int, seen: list[bytes]
) -> None:
    async def main() -> None:
        async with world.serving() as client, member(world) as asked:
            asked.answer = answer
            await send_half(client)
            await world.clock.sleep_ms(3_600_000)
            assert len(asked.checks) == 1
            assert await visible(client) == seen
            assert len(world.parts.transactions) == 0

    world.run(main)


@pytest.mark.parametrize("restart_each", [False, True])
def test_there_are_exactly_so_many_checks_as_configured_and_then_it_is_put_aside(
    world: BrokerWorld, restart_each: bool
) -> None:
    async def main() -> None:
        count = 0
        settings: dict[str, Any] = {
            "transaction_check_max": 5,
            "transaction_check_interval": 10_000,
        }
        async with world.serving(**settings) as client, member(world) as asked:
            await send_half(client)
            await world.clock.sleep_ms(6_500 if restart_each else 200_000)
            count += len(asked.checks)
        for _ in range(8 if restart_each else 0):
            async with world.running(**settings), member(world) as asked:
                await world.clock.sleep_ms(10_500)
                count += len(asked.checks)
        assert count == 5
        async with world.serving(**settings) as client:
            assert await visible(client) == []
            (aside,) = in_store(world, TRANS_CHECK_MAX_TIME_TOPIC)
            assert aside.body == b"hello"
            assert aside.properties["TRANSACTION_CHECK_TIMES"] == "5"
            assert len(world.parts.transactions) == 0

    world.run(main)


@pytest.mark.parametrize(
    ("seconds", "after_ms"), [("30", 30_000), ("2", 2_000), ("-1", 6_000), ("soon", 6_000)]
)
def test_a_message_may_say_when_it_is_checked_first(
    world: BrokerWorld, seconds: str, after_ms: int
) -> None:
    async def main() -> None:
        async with world.serving() as client, member(world) as asked:
            await send_half(client, CHECK_IMMUNITY_TIME_IN_SECONDS=seconds)
            await world.clock.sleep_ms(after_ms - 200)
            assert not asked.checks
            await world.clock.sleep_ms(400)
            assert len(asked.checks) == 1

    world.run(main)


def test_immunity_ends_with_the_time_for_which_the_store_keeps_messages(
    world: BrokerWorld,
) -> None:
    async def main() -> None:
        async with world.serving(file_reserved_time=1) as client, member(world) as asked:
            await send_half(client, CHECK_IMMUNITY_TIME_IN_SECONDS="999999999")
            await world.clock.sleep_ms(3_500_000)
            assert world.parts.transactions.undelivered_from() is not None
            await world.clock.sleep_ms(200_000)
            assert world.parts.transactions.undelivered_from() is None
            assert len(in_store(world, TRANS_CHECK_MAX_TIME_TOPIC)) == 1
            assert not asked.checks

    world.run(main)


def test_another_member_of_the_group_is_asked_when_the_sender_is_gone(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.running():
            async with member(world, "sender") as sender:
                await send_half(sender.client)
            async with member(world, "heir") as heir:
                heir.answer = COMMIT
                await world.clock.sleep_ms(7_000)
                assert len(heir.checks) == 1
                assert await visible(heir.client) == [b"hello"]

    world.run(main)


def test_members_are_asked_in_turn(world: BrokerWorld) -> None:
    async def main() -> None:
        async with (
            world.serving() as client,
            member(world, "one") as one,
            member(world, "two") as two,
        ):
            for number in range(6):
                await send_half(client, key=f"K{number}")
            await world.clock.sleep_ms(7_000)
            assert len(one.checks) == len(two.checks) == 3

    world.run(main)


def test_a_check_that_nobody_hears_does_not_count_and_is_made_when_somebody_comes(
    world: BrokerWorld,
) -> None:
    async def main() -> None:
        async with world.serving(transaction_check_max=2) as client:
            await send_half(client)
            await world.clock.sleep_ms(3_600_000)
            assert in_store(world, TRANS_CHECK_MAX_TIME_TOPIC) == []
            async with member(world) as asked:
                asked.answer = COMMIT
                await world.clock.sleep_ms(100)
                assert len(asked.checks) == 1
                assert await visible(client) == [b"hello"]

    world.run(main)


def test_what_nobody_could_be_asked_about_is_remembered_once(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving() as client:
            half = await send_half(client)
            await world.clock.sleep_ms(3_600_000)
            service = world.parts.transactions
            assert service.unheard == {GROUP: 1}
            await end(client, half, ROLLBACK)
            assert (service.unheard, len(service)) == ({}, 0)

    world.run(main)


def test_a_commit_without_a_replica_is_stored_and_done(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving(broker_role="SYNC_MASTER") as client:
            marks = {"TRAN_MSG": "true", "PGROUP": GROUP, "UNIQ_KEY": "K1"}
            sent = await client.send(queue_id=1, properties=marks, sys_flag=4)
            assert sent.code == ResponseCode.SLAVE_NOT_AVAILABLE
            sent.code = ResponseCode.SUCCESS
            for _ in range(2):
                answer = await end(client, Half(sent), COMMIT)
                assert answer.code == ResponseCode.SUCCESS, answer.remark
            assert await visible(client) == [b"hello"]

    world.run(main)


def test_a_half_message_older_than_the_store_keeps_is_put_aside(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving(file_reserved_time=2) as client:
            await send_half(client)
            await world.clock.sleep_ms(2 * 3_600_000 - 120_000)
            assert in_store(world, TRANS_CHECK_MAX_TIME_TOPIC) == []
            await world.clock.sleep_ms(240_000)
            assert len(in_store(world, TRANS_CHECK_MAX_TIME_TOPIC)) == 1
            assert world.parts.transactions.undelivered_from() is None

    world.run(main)


def beside_a_bad_one(world: BrokerWorld) -> list[bytes]:
    """Three halves, the second damaged: what is seen after the check of all."""
    seen: list[bytes] = []

    async def main() -> None:
        async with world.serving() as client, member(world) as asked:
            asked.answer = COMMIT
            await send_half(client, b"1", key="K1")
            bad = await send_half(client, b"2", key="K2")
            await send_half(client, b"3", key="K3")
            damage(bad)
            await world.clock.sleep_ms(7_000)
            seen.extend(await visible(client))

    def damage(half: Half) -> None:
        record = world.parts.store.log.record(half.physical_offset)
        assert record is not None
        at = bytes(record).index(b"2", 84)
        file = world.parts.store.log.mapped.files[0]
        file.buffer[half.physical_offset + at - file.start] ^= 0xFF

    world.run(main)
    return seen


def test_one_bad_half_message_holds_up_no_other(world: BrokerWorld) -> None:
    assert beside_a_bad_one(world) == [b"1", b"3"]
    assert world.parts.transactions.damaged_total == 1
    assert len(world.parts.transactions) == 0


def after_a_failed_commit(world: BrokerWorld, monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """A commit that the store could not take, and a check when it can again: what is seen."""
    seen: list[bytes] = []

    async def main() -> None:
        async with world.serving() as client, member(world) as asked:
            half = await send_half(client)
            store = world.parts.store
            put_group = store.put_group
            monkeypatch.setattr(
                store,
                "put_group",
                lambda group: [PutResult(PutStatus.CREATE_MAPEDFILE_FAILED)] * len(group),
            )
            answer = await end(client, half, COMMIT)
            assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert "asked again" in (answer.remark or "")
            await world.clock.sleep_ms(300_000)
            monkeypatch.setattr(store, "put_group", put_group)
            asked.answer = COMMIT
            await world.clock.sleep_ms(130_000)
            seen.extend(await visible(client))

    world.run(main)
    return seen


def test_a_commit_that_cannot_be_stored_is_made_up_for_by_the_next_check(
    world: BrokerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert after_a_failed_commit(world, monkeypatch) == [b"hello"]


def test_a_loop_that_stops_at_a_bad_half_message_would_be_noticed(
    world: BrokerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_due = PendingHalves.take_due

    def planted(self: PendingHalves, now_ms: int, count_max: int) -> list[int]:
        due = take_due(self, now_ms, count_max)
        for at, offset in enumerate(due):
            if world.parts.transactions.stored(self[offset]) is None:
                for other in due[at:]:
                    self.look_later(other, now_ms + 1_000)
                return due[:at]
        return due

    monkeypatch.setattr(PendingHalves, "take_due", planted)
    assert beside_a_bad_one(world) == [b"1"]


def test_a_commit_that_is_dropped_when_it_cannot_be_stored_would_be_noticed(
    world: BrokerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish = TransactionService.finish

    def planted(self: TransactionService, half: Any, stored: StoredMessage, ending: Any) -> int:
        try:
            return finish(self, half, stored, ending)
        except BrokerError:
            self._halves.remove(half)
            raise

    monkeypatch.setattr(TransactionService, "finish", planted)
    assert after_a_failed_commit(world, monkeypatch) == []


def test_the_two_halves_of_a_repeated_send_are_one_transaction(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving() as client, member(world) as asked:
            asked.answer = COMMIT
            first = await send_half(client, b"money")
            second = await send_half(client, b"money")
            assert (await end(client, second, COMMIT)).code == ResponseCode.SUCCESS
            await world.clock.sleep_ms(3_600_000)
            assert not asked.checks
            assert (await end(client, first, COMMIT)).code == ResponseCode.SUCCESS
            assert await visible(client) == [b"money"]
            # The same id again, later, is another transaction.
            third = await send_half(client, b"more")
            assert (await end(client, third, COMMIT)).code == ResponseCode.SUCCESS
            assert await visible(client) == [b"money", b"more"]

    world.run(main)


def test_halves_without_an_id_are_transactions_by_themselves(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving() as client, member(world) as asked:
            first = await send_half(client, b"1", key=None)
            second = await send_half(client, b"2", key=None)
            await end(client, second, COMMIT)
            await world.clock.sleep_ms(7_000)
            assert len(asked.checks) == 1
            assert (await end(client, first, COMMIT)).code == ResponseCode.SUCCESS
            assert (await end(client, first, COMMIT)).code == ResponseCode.SUCCESS
            assert await visible(client) == [b"2", b"1"]

    world.run(main)


def test_an_unknown_end_is_not_answered_and_changes_nothing(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving() as client:
            half = await send_half(client)
            with pytest.raises(CallTimeout):
                await client.call(
                    RequestCode.END_TRANSACTION,
                    {
                        "producerGroup": GROUP,
                        "tranStateTableOffset": half.queue_offset,
                        "commitLogOffset": half.physical_offset,
                        "commitOrRollback": UNKNOWN,
                    },
                    timeout_ms=500,
                )
            assert (await end(client, half, COMMIT)).code == ResponseCode.SUCCESS

    world.run(main)


# Restarts, retention, operators.


def test_pending_half_messages_survive_a_restart(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving() as client:
            halves = [await send_half(client, b"%d" % n, key=f"K{n}") for n in range(40)]
            for half in halves[::2]:
                await end(client, half, COMMIT)
            await world.clock.sleep_ms(8_000)
        async with world.serving() as client, member(world) as asked:
            assert len(world.parts.transactions) == 20
            assert len(await visible(client)) == 20
            asked.answer = COMMIT
            await world.clock.sleep_ms(120_000)
            assert sorted(await visible(client)) == sorted(b"%d" % n for n in range(40))
            await world.clock.sleep_ms(10_000)
            offsets = world.parts.offsets
            assert offsets.get(HALF_TOPIC, "CID_RMQ_SYS_TRANS", 0) == 80  # Two checks each.
            assert offsets.get(OP_HALF_TOPIC, "CID_RMQ_SYS_TRANS", 0) == 80
        async with world.running():
            assert len(world.parts.transactions) == 0

    world.run(main)


def test_progress_is_not_noted_before_the_disk_has_it(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving(flush_interval_commit_log=10_000) as client:
            half = await send_half(client)
            await end(client, half, COMMIT)
            await world.clock.sleep_ms(2_000)
            assert not world.parts.store.is_flushed(world.parts.store.log.appended)
            assert not world.parts.offsets.get(HALF_TOPIC, "CID_RMQ_SYS_TRANS", 0)
            await world.clock.sleep_ms(20_000)
            assert world.parts.offsets.get(HALF_TOPIC, "CID_RMQ_SYS_TRANS", 0) == 1

    world.run(main)


def test_a_half_message_that_is_not_over_keeps_its_file(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving(file_reserved_time=1, delete_when="00;01;02;03;04") as client:
            half = await send_half(client)
            for number in range(40):
                await client.send("TopicTest", b"x" * 8_000, queue_id=0)
                assert number >= 0
            store = world.parts.store
            assert len(store.log.mapped) > 3
            assert world.parts.transactions.undelivered_from() == half.physical_offset
            world.parts.retention.clean_soon()
            for file in store.log.mapped.files:
                world.files.set_modified_ms(file.path, 0)
            world.parts.retention.clean()
            assert store.log.start == 0
            await end(client, half, ROLLBACK)
            store.flush()
            world.parts.retention.clean_soon()
            world.parts.retention.clean()
            assert store.log.start > 0

    world.run(main)


def test_operators_list_what_is_not_over_and_have_it_checked_again(world: BrokerWorld) -> None:
    async def main() -> None:
        settings: dict[str, Any] = {"transaction_check_max": 1, "transaction_check_interval": 1_000}
        async with world.serving(**settings) as client, member(world) as asked:
            await send_half(client, b"money", TAGS="TagA", KEYS="a b")
            await send_half(client, group="others", key="K2")
            answer = await client.call(RequestCode.LIST_TRANSACTIONS, {"group": GROUP})
            listed = HalfMessageList.from_json(answer.body)
            assert listed.pending == 2
            (message,) = listed.messages
            assert (message.topic, message.queue_id, message.transaction_id) == (
                "TopicTest",
                1,
                "K1",
            )
            assert (message.tag, message.keys, message.check_times) == ("TagA", "a b", 0)
            await world.clock.sleep_ms(10_000)
            assert len(asked.checks) == 1
            (aside,) = in_store(world, TRANS_CHECK_MAX_TIME_TOPIC)
            asked.answer = COMMIT
            resume = RequestCode.RESUME_CHECK_HALF_MESSAGE
            assert (await client.call(resume, {"msgId": aside.offset_id})).code == 0
            await world.clock.sleep_ms(10_000)
            assert await visible(client) == [b"money"]
            for wrong in ("", "nonsense", "0" * 32, str(OffsetId(aside.store_host, 999_999))):
                answer = await client.call(resume, {"msgId": wrong})
                assert answer.code == ResponseCode.SYSTEM_ERROR, wrong

    world.run(main)


def test_the_owner_of_a_half_message_that_was_given_up_may_still_commit_it(
    world: BrokerWorld,
) -> None:
    async def main() -> None:
        settings: dict[str, Any] = {"transaction_check_max": 1, "transaction_check_interval": 1_000}
        async with world.serving(**settings) as client, member(world):
            half = await send_half(client)
            await world.clock.sleep_ms(10_000)
            assert world.parts.transactions.given_up_total == 1
            for _ in range(2):
                assert (await end(client, half, COMMIT)).code == ResponseCode.SUCCESS
            assert await visible(client) == [b"hello"]

    world.run(main)


def test_a_broker_without_half_messages_does_nothing(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.running():
            await asyncio.sleep(60)
            assert HALF_TOPIC not in world.parts.topics.topics

    world.run(main)
