"""Any delivery time, as an application asks for it, on real servers in virtual time."""

from __future__ import annotations

import pytest

from skylark.admin.client import AdminClient
from skylark.compat import Message as JavaMessage
from skylark.errors import ClientError, ConfigError, SkylarkError
from skylark.model.message import Message
from skylark.testing import MemoryBroker


def admin_of(mq: MemoryBroker) -> AdminClient:
    return AdminClient(mq.connect())


def test_a_message_says_when_it_is_to_be_delivered() -> None:
    with MemoryBroker() as mq:

        async def main() -> None:
            start = mq.clock.now_ms()
            async with mq.connect() as client, client.producer("p") as producer:
                await producer.send(Message("T", b"delay", delay_ms=90_000))
                await producer.send(Message("T", b"at", deliver_at_ms=start + 30_000))
                await producer.send(Message("T", b"past", deliver_at_ms=start - 30_000))
                assert [m.body for m in mq.messages("T")] == [b"past"]
                await mq.clock.advance(seconds=31)
                assert {m.body for m in mq.messages("T")} == {b"past", b"at"}
                await mq.clock.advance(seconds=60)
                assert {m.body for m in mq.messages("T")} == {b"past", b"at", b"delay"}
                with pytest.raises(SkylarkError, match="too far ahead"):
                    await producer.send(Message("T", b"never", delay_ms=400 * 86_400_000))

        mq.run(main)


@pytest.mark.parametrize("fault", ["kill", "cut_power", "restart"])
def test_timers_survive_what_happens_to_a_broker(fault: str) -> None:
    with MemoryBroker(seed=3) as mq:

        async def main() -> None:
            async with mq.connect() as client, client.producer("p") as producer:
                for number in range(10):
                    delay_ms = 1_000 + number * 5_000
                    await producer.send(Message("T", b"%d" % number, delay_ms=delay_ms))
                await mq.clock.advance(seconds=12)
                if fault == "restart":
                    await mq.faults.restart()
                else:
                    getattr(mq.faults, fault)()
                    await mq.clock.advance(seconds=10)
                    mq.faults.start()
                await mq.wait_ready()
                await mq.clock.advance(seconds=60)
                assert sorted(int(m.body) for m in mq.messages("T")) == list(range(10))

        mq.run(main)


def test_an_operator_lists_cancels_and_fires() -> None:
    with MemoryBroker() as mq:

        async def main() -> None:
            async with (
                mq.connect() as client,
                client.producer("p") as producer,
                admin_of(mq) as admin,
            ):
                receipts = [
                    await producer.send(Message("T", b"%d" % n, keys=[f"k{n}"], delay_ms=60_000))
                    for n in range(3)
                ]
                timers, total = await admin.timers()
                assert total == 3
                assert [t.keys for t in timers] == [("k0",), ("k1",), ("k2",)]
                assert {t.id for t in timers} == {r.message_id for r in receipts}
                assert await admin.cancel_timer(timers[0].id) == 1
                assert await admin.fire_timer("k1") == 1
                assert [m.body for m in mq.messages("T")] == [b"1"]
                for action in (admin.cancel_timer, admin.fire_timer):
                    with pytest.raises(ClientError, match="nothing that waits"):
                        await action(timers[0].id)
                await mq.clock.advance(seconds=70)
                assert [m.body for m in mq.messages("T")] == [b"1", b"2"]

        mq.run(main)


def test_an_operator_lets_a_message_repeat() -> None:
    with MemoryBroker() as mq:

        async def main() -> None:
            async with admin_of(mq) as admin:
                await admin.create_topic("T", read_queues=1, write_queues=1)
                added = await admin.repeat_message(
                    Message("T", b"tick", tag="Tick"), rule="every 60000", repeat_id="minute"
                )
                assert (added.id, added.broker) == ("minute", "broker-a")
                await mq.clock.advance(minutes=5, seconds=1)
                assert len(mq.messages("T")) == 5
                assert {m.tag for m in mq.messages("T")} == {"Tick"}
                (shown,), total = await admin.timers(repeats=True)
                assert (shown.id, shown.rule, shown.repeat_count, total) == (
                    "minute", "every 60000", 5, 1,
                )  # fmt: skip
                assert await admin.cancel_timer("minute") == 1
                await mq.clock.advance(minutes=5)
                assert len(mq.messages("T")) == 5
                with pytest.raises(ConfigError, match="never comes"):
                    await admin.repeat_message(Message("T", b"x"), rule="cron 0 0 31 2 *")
                with pytest.raises(SkylarkError, match="not exist"):
                    await admin.repeat_message(Message("Nowhere", b"x"), rule="every 1000")

        mq.run(main)


def test_java_names_set_the_same_times() -> None:
    for set_time, expected in (
        (lambda m: m.setDelayTimeSec(3), {"delay_ms": 3_000}),
        (lambda m: m.setDelayTimeMs(250), {"delay_ms": 250}),
        (lambda m: m.setDeliverTimeMs(1_900_000_000_000), {"deliver_at_ms": 1_900_000_000_000}),
        (lambda m: m.setDelayTimeLevel(4), {"delay_level": 4}),
    ):
        message = JavaMessage("T", b"x")
        set_time(message)
        model = message.to_model()
        found = {
            name: getattr(model, name)
            for name in ("delay_level", "delay_ms", "deliver_at_ms")
            if getattr(model, name)
        }
        assert found == expected
    both = JavaMessage("T", b"x")
    both.setDelayTimeLevel(2)
    both.setDelayTimeSec(60)
    assert (both.to_model().delay_level, both.to_model().delay_ms) == (2, None)
