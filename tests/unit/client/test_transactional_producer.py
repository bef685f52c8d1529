"""Transactions of a Python client, with the real broker in memory and on virtual time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from skylark import Message, TransactionListener, TransactionState
from skylark.errors import BrokerError, ClientError, InvalidMessage, SkylarkError
from skylark.model.message import StoredMessage
from skylark.testing import MemoryBroker


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    with MemoryBroker() as mq:
        yield mq


def bodies(mq: MemoryBroker, topic: str = "Transfers") -> list[bytes]:
    return [message.body for message in mq.messages(topic)]


def test_a_block_that_succeeds_commits_and_one_that_raises_rolls_back(broker: MemoryBroker) -> None:
    async def main() -> None:
        async with broker.connect() as client, client.producer("transfers") as producer:
            async with producer.transaction() as transaction:
                await transaction.send(Message("Transfers", b"1"))
                await transaction.send(Message("Transfers", b"2"))
                assert bodies(broker) == []
            assert transaction.state is TransactionState.COMMIT
            assert transaction.is_confirmed
            assert sorted(bodies(broker)) == [b"1", b"2"]
            transaction = producer.transaction()

            async def fail() -> None:
                async with transaction:
                    await transaction.send(Message("Transfers", b"3"))
                    raise ZeroDivisionError

            with pytest.raises(ZeroDivisionError):
                await fail()
            assert transaction.is_confirmed
            await broker.clock.advance(hours=1)
        assert sorted(bodies(broker)) == [b"1", b"2"]

    broker.run(main)


def test_a_transaction_is_no_longer_open_after_its_block(broker: MemoryBroker) -> None:
    async def main() -> None:
        async with broker.connect() as client, client.producer("transfers") as producer:
            async with producer.transaction() as transaction:
                pass
            with pytest.raises(ClientError, match="not open"):
                await transaction.send(Message("Transfers", b"1"))

    broker.run(main)


def test_a_delayed_message_is_refused_before_it_is_sent(broker: MemoryBroker) -> None:
    async def main() -> None:
        async with broker.connect() as client, client.producer("transfers") as producer:
            with pytest.raises(InvalidMessage, match="delayed"):
                async with producer.transaction() as transaction:
                    await transaction.send(Message("Transfers", b"1", delay_level=3))

    broker.run(main)


def test_a_lost_connection_leaves_the_end_to_the_check(broker: MemoryBroker) -> None:
    async def main() -> None:
        async with broker.connect() as client, client.producer("transfers") as producer:
            await producer.send(Message("Transfers", b"0"))
            async with producer.transaction() as transaction:
                await transaction.send(Message("Transfers", b"1"))
                cut = broker.faults.partition()
            assert transaction.state is TransactionState.COMMIT
            assert not transaction.is_confirmed
            assert bodies(broker) == [b"0"]
            cut.heal()
            await broker.clock.advance(minutes=5)
            assert sorted(bodies(broker)) == [b"0", b"1"]

    broker.run(main)


@pytest.mark.parametrize(("answer", "seen"), [(True, [b"1"]), (False, []), (None, [])])
def test_another_process_of_the_group_answers_for_one_that_died(
    broker: MemoryBroker, answer: bool | None, seen: list[bytes]
) -> None:
    asked: list[StoredMessage] = []

    async def check(half: StoredMessage) -> bool | None:
        asked.append(half)
        return answer

    async def main() -> None:
        async with broker.connect() as client, client.producer("transfers") as producer:
            transaction = producer.transaction()
            await transaction.__aenter__()
            await transaction.send(Message("Transfers", b"1" * 5_000, tag="TagA", keys=["k"]))
        async with broker.connect() as client, client.producer("transfers", check=check) as other:
            await other.fetch_queues("Transfers")
            await broker.clock.advance(minutes=3)
        assert (asked[0].topic, asked[0].tag, asked[0].body) == ("Transfers", "TagA", b"1" * 5_000)
        assert len(asked) == (1 if answer is not None else 3)
        assert len(bodies(broker)) == len(seen)

    broker.run(main)


def test_a_transaction_under_way_is_not_ended_by_a_check(broker: MemoryBroker) -> None:
    """A local transaction of 100 s is longer than the time-out, and ends right all the same."""
    asked: list[StoredMessage] = []

    async def main() -> None:
        async with (
            broker.connect() as client,
            client.producer("transfers", check=asked.append) as producer,
        ):
            async with producer.transaction() as transaction:
                await transaction.send(Message("Transfers", b"1"))
                await broker.clock.advance(seconds=100)
                assert bodies(broker) == []
            assert bodies(broker) == [b"1"]
            assert asked == []

    broker.run(main)


class Listener(TransactionListener):
    def __init__(self, state: TransactionState, checked: TransactionState) -> None:
        self.state = state
        self.checked = checked
        self.executed: list[tuple[bytes, Any]] = []
        self.checks = 0

    def execute(self, message: Message, argument: Any, transaction_id: str) -> TransactionState:
        self.executed.append((message.body, argument))
        if argument == "raise":
            raise ZeroDivisionError
        return self.state

    async def check(self, half: StoredMessage) -> TransactionState:
        self.checks += 1
        return self.checked


@pytest.mark.parametrize("state", list(TransactionState))
@pytest.mark.parametrize("checked", [TransactionState.COMMIT, TransactionState.ROLLBACK])
def test_a_listener_runs_the_local_transaction_and_is_asked_when_it_did_not_know(
    broker: MemoryBroker, state: TransactionState, checked: TransactionState
) -> None:
    async def main() -> None:
        listener = Listener(state, checked)
        async with (
            broker.connect() as client,
            client.transactional_producer("transfers", listener) as producer,
        ):
            sent = await producer.send_in_transaction(Message("Transfers", b"1"), "argument")
            assert (sent.state, listener.executed) == (state, [(b"1", "argument")])
            assert sent.receipt.transaction_id == sent.receipt.message_id
            await broker.clock.advance(minutes=10)
            assert listener.checks == (1 if state is TransactionState.UNKNOWN else 0)
            ends = checked if state is TransactionState.UNKNOWN else state
            assert bodies(broker) == ([b"1"] if ends is TransactionState.COMMIT else [])

    broker.run(main)


def test_a_local_transaction_that_raises_is_decided_by_the_check(broker: MemoryBroker) -> None:
    async def main() -> None:
        listener = Listener(TransactionState.COMMIT, TransactionState.COMMIT)
        async with (
            broker.connect() as client,
            client.transactional_producer("transfers", listener) as producer,
        ):
            sent = await producer.send_in_transaction(Message("Transfers", b"1"), "raise")
            assert sent.state is TransactionState.UNKNOWN
            assert isinstance(sent.error, ZeroDivisionError)
            assert bodies(broker) == []
            await broker.clock.advance(seconds=10)
            assert bodies(broker) == [b"1"]

    broker.run(main)


def test_without_a_stored_half_message_nothing_is_run(broker: MemoryBroker) -> None:
    async def main() -> None:
        listener = Listener(TransactionState.COMMIT, TransactionState.COMMIT)
        async with (
            broker.connect() as client,
            client.transactional_producer("transfers", listener) as producer,
        ):
            await producer.send(Message("Transfers", b"0"))
            broker.faults.kill()
            with pytest.raises(SkylarkError):
                await producer.send_in_transaction(Message("Transfers", b"1"))
            assert listener.executed == []

    broker.run(main)


def test_a_check_that_raises_is_asked_again(broker: MemoryBroker) -> None:
    calls = 0

    def check(half: StoredMessage) -> bool:
        nonlocal calls
        calls += 1
        if calls < 3:
            raise ConnectionError("the database is away")
        return True

    async def main() -> None:
        async with (
            broker.connect() as client,
            client.producer("transfers", check=check) as producer,
        ):
            async with producer.transaction() as transaction:
                await transaction.send(Message("Transfers", b"1"))
                await transaction.leave()
            assert bodies(broker) == []
            await broker.clock.advance(minutes=3)
            assert bodies(broker) == [b"1"]

    broker.run(main)


def test_half_messages_survive_the_broker(broker: MemoryBroker) -> None:
    async def main() -> None:
        async with broker.connect() as client, client.producer("transfers") as producer:
            async with producer.transaction() as transaction:
                await transaction.send(Message("Transfers", b"1"))
                await broker.faults.restart()
                await broker.wait_ready()
            assert transaction.is_confirmed
            assert bodies(broker) == [b"1"]
            async with producer.transaction() as transaction:
                await transaction.send(Message("Transfers", b"2"))
                broker.faults.kill()
                broker.faults.start()
            await broker.clock.advance(minutes=3)
            assert sorted(bodies(broker)) == [b"1", b"2"]

    broker.run(main)


def test_a_commit_that_comes_too_late_is_told(broker: MemoryBroker) -> None:
    async def main() -> None:
        async with broker.connect() as client, client.producer("transfers") as producer:
            async with producer.transaction() as transaction:
                await transaction.send(Message("Transfers", b"1"))
                await transaction.rollback()
            with pytest.raises(BrokerError, match="rolled back already"):
                await transaction.commit()

    broker.run(main)


def test_the_end_of_a_transaction_is_traced(broker: MemoryBroker) -> None:
    async def main() -> None:
        async with (
            broker.connect() as client,
            client.producer("transfers", enable_msg_trace=True, check=lambda half: True) as traced,
        ):
            async with traced.transaction() as transaction:
                await transaction.send(Message("Transfers", b"1", tag="TagA", keys=["k"]))
            async with traced.transaction() as transaction:
                await transaction.send(Message("Transfers", b"2"))
                await transaction.leave()
            await broker.clock.advance(seconds=10)
        text = b"".join(message.body for message in broker.messages("RMQ_SYS_TRACE_TOPIC"))
        ends = [
            record.split(b"\x01")
            for record in text.split(b"\x02")
            if record.startswith(b"EndTransaction")
        ]
        assert [(end[4], end[6], end[7], *end[-2:]) for end in ends] == [
            (b"Transfers", b"TagA", b"k", b"COMMIT_MESSAGE", b"false"),
            (b"Transfers", b"", b"", b"COMMIT_MESSAGE", b"true"),
        ]

    broker.run(main)
