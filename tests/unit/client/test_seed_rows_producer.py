"""Rows of the checklist on sending that no other test shows, on the real broker in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest

from skylark import Message
from skylark.errors import BrokerError, ClientError, NoRoute
from skylark.testing import MemoryBroker, SimHost


@pytest.fixture
def mq() -> Iterator[MemoryBroker]:
    with MemoryBroker() as broker:
        yield broker


# What a message id may make a client do (S26).


def test_an_id_that_names_a_stranger_s_machine_dials_nobody(
    mq: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    dialled: list[str] = []
    connect = SimHost.connect

    async def watched(
        host: SimHost, factory: Callable[[], asyncio.Protocol], name: str, port: int
    ) -> asyncio.Transport:
        dialled.append(f"{name}:{port}")
        return await connect(host, factory, name, port)

    monkeypatch.setattr(SimHost, "connect", watched)

    async def scenario() -> None:
        async with mq.connect() as client, client.producer("shop") as producer:
            receipt = await producer.send(Message("Orders", b"x"))
            foreign = "C0A80001" + receipt.offset_id[8:]  # 192.168.0.1 in place of the broker.
            with pytest.raises(NoRoute, match=r"no broker of this cluster is at 192\.168\.0\.1"):
                await client.view_message(foreign)
            # With a topic it may still be a producer's id, which is looked for; nobody is dialled.
            with pytest.raises(BrokerError, match="no message has the id"):
                await client.view_message(foreign, "Orders")
            async with client.pull_consumer("readers") as consumer:
                with pytest.raises(ClientError, match=r"no broker of this cluster"):
                    await consumer.view_message("Orders", foreign)
            assert (await client.view_message(receipt.offset_id)).body == b"x"
        # A client that has sent nothing asks the name server who is of the cluster.
        async with mq.connect() as client:
            assert (await client.view_message(receipt.offset_id)).body == b"x"

    mq.run(scenario)
    assert set(dialled) == {mq.address, mq.broker_address}
