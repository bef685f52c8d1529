"""Transactions without await: the blocking client and Java's names, over real sockets."""

from __future__ import annotations

import pathlib
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

import skylark.sync
from skylark import Message, StoredMessage, TransactionListener, TransactionState, compat
from skylark.testing import DiskBroker


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DiskBroker]:
    folder: pathlib.Path = tmp_path_factory.mktemp("transactions")
    with DiskBroker(folder, transaction_time_out=200, transaction_check_interval=500) as broker:
        yield broker


def bodies(mq: skylark.sync.Client, topic: str, count: int) -> list[bytes]:
    """What lies in a topic once so many messages do, or after a while."""
    deadline = time.monotonic() + 20
    found: list[bytes] = []
    with mq.pull_consumer(f"reader-{topic}") as reader:
        while time.monotonic() < deadline:
            found = []
            for queue in mq.fetch_queues(topic):
                end = mq.max_offset(queue)
                if end:
                    found += [m.body for m in reader.pull(queue, offset=0).messages]
            if len(found) >= count:
                return sorted(found)
            time.sleep(0.05)
    return sorted(found)


def test_a_blocking_block_commits_or_rolls_back(broker: DiskBroker) -> None:
    with skylark.sync.connect(broker.address) as mq, mq.producer("blocking") as producer:
        with producer.transaction() as transaction:
            receipt = transaction.send(Message("Blocking", b"1"))
        assert transaction.is_confirmed
        assert transaction.receipts == (receipt,)
        failed = producer.transaction()

        def fail() -> None:
            with failed:
                failed.send(Message("Blocking", b"2"))
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            fail()
        assert failed.state is TransactionState.ROLLBACK
        assert bodies(mq, "Blocking", 1) == [b"1"]


def test_a_blocking_check_runs_in_a_thread(broker: DiskBroker) -> None:
    threads: list[str] = []

    def check(half: StoredMessage) -> bool:
        threads.append(threading.current_thread().name)
        time.sleep(0.05)
        return True

    with skylark.sync.connect(broker.address) as mq, mq.producer("asked", check=check) as producer:
        with producer.transaction() as transaction:
            transaction.send(Message("Asked", b"1"))
            transaction.leave()
        assert bodies(mq, "Asked", 1) == [b"1"]
    assert threads
    assert "skylark-sync" not in threads[0]


class AsyncCheck:
    """As DatabaseCheck is one: an object whose call is a coroutine."""

    async def __call__(self, half: StoredMessage) -> bool:
        return True


def test_a_check_that_is_a_coroutine_function_is_awaited(broker: DiskBroker) -> None:
    check = AsyncCheck()
    with skylark.sync.connect(broker.address) as mq, mq.producer("waits", check=check) as producer:
        with producer.transaction() as transaction:
            transaction.send(Message("Awaited", b"1"))
            transaction.leave()
        assert bodies(mq, "Awaited", 1) == [b"1"]


class Listener(TransactionListener):
    def execute(self, message: Message, argument: Any, transaction_id: str) -> TransactionState:
        return TransactionState[argument]

    def check(self, half: StoredMessage) -> TransactionState:
        return TransactionState.COMMIT


def test_a_blocking_listener(broker: DiskBroker) -> None:
    with (
        skylark.sync.connect(broker.address) as mq,
        mq.transactional_producer("listening", Listener()) as producer,
    ):
        for name in ("COMMIT", "ROLLBACK", "UNKNOWN"):
            sent = producer.send_in_transaction(Message("Listening", name.encode()), name)
            assert sent.state is TransactionState[name]
        assert bodies(mq, "Listening", 2) == [b"COMMIT", b"UNKNOWN"]


class Branch(compat.LocalTransactionExecuter):
    def executeLocalTransactionBranch(
        self, msg: compat.Message, arg: Any
    ) -> compat.LocalTransactionState | None:
        assert msg.getTransactionId()
        state: compat.LocalTransactionState | None = arg
        return state


class Checker(compat.TransactionCheckListener):
    def checkLocalTransactionState(self, msg: compat.MessageExt) -> compat.LocalTransactionState:
        assert msg.getProperty("PGROUP") == "old_names"
        return compat.LocalTransactionState.COMMIT_MESSAGE


def test_the_deprecated_names_work_and_say_that_they_are(broker: DiskBroker) -> None:
    producer = compat.TransactionMQProducer("old_names")
    assert producer.getCheckThreadPoolMinSize() == producer.getCheckThreadPoolMaxSize() == 1
    assert producer.getCheckRequestHoldMax() == 2_000
    producer.setNamesrvAddr(broker.address)
    producer.setTransactionCheckListener(Checker())
    with producer:
        states = compat.LocalTransactionState
        for state in (states.COMMIT_MESSAGE, states.ROLLBACK_MESSAGE, states.UNKNOW, None):
            message = compat.Message("OldNames", str(state).encode())
            message.setDelayTimeLevel(18)  # Java's producer takes it off as well.
            with pytest.warns(DeprecationWarning, match="TransactionListener"):
                result = producer.sendMessageInTransaction(message, Branch(), state)
            assert result.getLocalTransactionState() is (state or states.UNKNOW)
        with pytest.raises(compat.MQClientException, match="setTransactionListener"):
            producer.sendMessageInTransaction(compat.Message("OldNames", b"x"), "argument")
        with skylark.sync.connect(broker.address) as mq:
            assert bodies(mq, "OldNames", 3) == [b"COMMIT_MESSAGE", b"None", b"UNKNOW"]


class SlowListener(compat.TransactionListener):
    def __init__(self) -> None:
        self.under_way = self.most = self.count = 0

    def executeLocalTransaction(self, msg: compat.Message, arg: Any) -> None:
        return None

    def checkLocalTransaction(self, msg: compat.MessageExt) -> compat.LocalTransactionState:
        assert threading.current_thread().name.startswith("skylark-check")
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        time.sleep(0.05)
        self.under_way -= 1
        self.count += 1
        return compat.LocalTransactionState.COMMIT_MESSAGE


@pytest.mark.parametrize("threads", [1, 3])
def test_checks_run_in_so_many_threads_as_set(broker: DiskBroker, threads: int) -> None:
    listener, topic = SlowListener(), f"Threads-{threads}"
    producer = compat.TransactionMQProducer(f"threads_{threads}")
    producer.setNamesrvAddr(broker.address)
    producer.setTransactionListener(listener)
    producer.setCheckThreadPoolMaxSize(threads)
    with producer:
        for number in range(8):
            producer.sendMessageInTransaction(compat.Message(topic, b"%d" % number), None)
        with skylark.sync.connect(broker.address) as mq:
            assert len(bodies(mq, topic, 8)) == 8
    assert listener.most <= threads
    assert listener.most > 1 or threads == 1
