"""The broker as a whole: start, registration, stop, restart, and what its ports serve."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
from broker_world import PORT, BrokerWorld, Client, records

from skylark.broker.config import BrokerConfig
from skylark.errors import ConfigError, ConnectFailed, StoreLocked
from skylark.model.topic import TopicConfig
from skylark.nameserver.app import NameServer
from skylark.nameserver.config import NameServerConfig
from skylark.net import Channels
from skylark.protocol.codes import RequestCode, ResponseCode
from skylark.protocol.headers import REQUEST_HEADERS
from skylark.remote import RemoteBroker, RemoteNameServer
from skylark.testing import SimHost
from skylark.testing.files import SimFiles


@contextlib.asynccontextmanager
async def name_server(world: BrokerWorld, host: SimHost, **settings: Any) -> AsyncIterator[str]:
    config = NameServerConfig(kv_config_path="/namesrv/kv.json", **settings)
    server = NameServer(config, clock=world.clock, network=host, files=SimFiles())
    async with server:
        yield f"{host.address}:9876"


@contextlib.asynccontextmanager
async def asking(world: BrokerWorld, address: str) -> AsyncIterator[RemoteNameServer]:
    async with Channels(world.client, world.clock, random.Random(5)) as channels:
        yield RemoteNameServer(channels, address)


def test_a_broker_is_known_to_all_name_servers_when_it_is_ready_and_to_none_when_it_ends(
    world: BrokerWorld,
) -> None:
    async def main() -> None:
        hosts = [world.network.host(f"10.0.1.{n}") for n in (1, 2)]
        async with (
            name_server(world, hosts[0]) as first,
            name_server(world, hosts[1]) as second,
            asking(world, first) as one,
            asking(world, second) as two,
        ):
            async with world.running(namesrv_addr=f"{first};{second}"):
                for server in (one, two):
                    cluster = await server.get_cluster_info()
                    broker = cluster.brokers["broker-a"]
                    assert dict(broker.addresses) == {0: world.address}
                    assert "TBW102" in await server.get_topics()
            for server in (one, two):
                assert dict((await server.get_cluster_info()).brokers) == {}

    world.run(main)


def test_a_new_topic_is_known_to_the_name_servers_at_once(world: BrokerWorld) -> None:
    async def main() -> None:
        host = world.network.host("10.0.1.1")
        async with (
            name_server(world, host) as address,
            asking(world, address) as server,
            world.serving(namesrv_addr=address) as client,
        ):
            await client.send("Fresh")
            await world.clock.sleep_ms(5)
            route = await server.get_route("Fresh")
            assert route.queues[0].write_queue_nums == 4
            world.parts.topics.put(TopicConfig("Fresh", 8, 8))
            await world.clock.sleep_ms(5)
            assert (await server.get_route("Fresh")).queues[0].write_queue_nums == 8

    world.run(main)


def test_a_name_server_that_comes_back_empty_knows_everything_again_within_seconds(
    world: BrokerWorld,
) -> None:
    async def main() -> None:
        host = world.network.host("10.0.1.1")
        async with contextlib.AsyncExitStack() as stack:
            first = await stack.enter_async_context(name_server(world, host))
            async with world.serving(namesrv_addr=first) as client:
                await client.send("Kept")
                await stack.aclose()
                await world.clock.sleep_ms(500)
                async with name_server(world, host) as address, asking(world, address) as server:
                    await world.clock.sleep_ms(5_000)
                    assert {"Kept", "TBW102"} <= set(await server.get_topics())

    world.run(main)


def test_a_silent_name_server_delays_the_start_by_its_timeout_only(world: BrokerWorld) -> None:
    async def main() -> None:
        dead = world.network.host("10.0.1.9")
        host = world.network.host("10.0.1.1")
        async with name_server(world, host) as address, asking(world, address) as server:
            begun = world.clock.monotonic_ms()
            async with world.running(namesrv_addr=f"{dead.address}:9876;{address}"):
                assert world.clock.monotonic_ms() - begun <= 6_100
                assert "broker-a" in (await server.get_cluster_info()).brokers

    world.run(main)


def test_a_broker_without_a_reachable_name_server_serves_and_registers_later(
    world: BrokerWorld,
) -> None:
    async def main() -> None:
        host = world.network.host("10.0.1.1")
        async with world.serving(namesrv_addr=f"{host.address}:9876") as client:
            assert (await client.send()).code == 0
            async with name_server(world, host) as address, asking(world, address) as server:
                await world.clock.sleep_ms(6_000)
                assert "broker-a" in (await server.get_cluster_info()).brokers

    world.run(main)


@pytest.mark.parametrize("forced", [True, False])
def test_heartbeats_keep_a_broker_registered(world: BrokerWorld, forced: bool) -> None:
    async def main() -> None:
        host = world.network.host("10.0.1.1")
        async with (
            name_server(world, host) as address,
            asking(world, address) as server,
            world.running(namesrv_addr=address, force_register=forced),
        ):
            await world.clock.sleep_ms(400_000)
            assert "broker-a" in (await server.get_cluster_info()).brokers

    world.run(main)


def test_order_settings_of_the_name_server_reach_the_topics(world: BrokerWorld) -> None:
    async def main() -> None:
        host = world.network.host("10.0.1.1")
        async with (
            name_server(world, host) as address,
            asking(world, address) as server,
            world.serving(namesrv_addr=address) as client,
        ):
            await client.send("Ordered")
            await server.put_kv("ORDER_TOPIC_CONFIG", "Ordered", "broker-a:4")
            await world.clock.sleep_ms(31_000)
            assert world.parts.topics.topics["Ordered"].order

    world.run(main)


def test_a_broker_taken_offline_shows_it_in_every_topic(world: BrokerWorld) -> None:
    async def main() -> None:
        host = world.network.host("10.0.1.1")
        async with (
            name_server(world, host) as address,
            asking(world, address) as server,
            world.running(namesrv_addr=address, broker_permission=4),
        ):
            assert (await server.get_route("TBW102")).queues[0].perm == 4

    world.run(main)


def test_a_permission_that_is_taken_and_given_back_is_in_the_routes_within_a_second(
    world: BrokerWorld,
) -> None:
    async def main() -> None:
        host = world.network.host("10.0.1.1")
        async with (
            name_server(world, host) as address,
            asking(world, address) as server,
            world.running(namesrv_addr=address),
        ):
            remote = RemoteBroker(server._channels, world.address)
            for permission, shown in (("4", 4), ("6", 7)):
                await remote.update_config({"brokerPermission": permission})
                await world.clock.sleep_ms(1_500)
                assert (await server.get_route("TBW102")).queues[0].perm == shown

    world.run(main)


def test_an_advertised_address_that_leads_nowhere_is_explained(
    world: BrokerWorld, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with world.running(broker_ip1="10.0.0.99"):
            pass
        assert "told to connect to 10.0.0.99:10911, which cannot be reached" in caplog.text
        assert "set brokerIP1" in caplog.text
        caplog.clear()
        async with world.running():
            pass
        assert "told to connect" not in caplog.text

    with caplog.at_level(logging.WARNING, "skylark.broker.app"):
        world.run(main)


def test_an_advertised_address_of_another_broker_is_explained(
    world: BrokerWorld, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        other = BrokerWorld.__new__(BrokerWorld)
        other.__dict__.update(world.__dict__)
        other.server = world.network.host("10.0.0.7")
        other.files = SimFiles()
        async with other.running(broker_name="broker-b"), world.running(broker_ip1="10.0.0.7"):
            pass
        assert "leads to another server" in caplog.text

    with caplog.at_level(logging.WARNING, "skylark.broker.app"):
        world.run(main)


def test_a_restart_keeps_messages_topics_groups_and_offsets(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving() as client:
            for number in range(20):
                await client.send("T", b"%d" % number)
            commit = {"consumerGroup": "g", "topic": "T", "queueId": 0, "commitOffset": 7}
            await client.call(RequestCode.UPDATE_CONSUMER_OFFSET, commit)
            assert world.files.exists("/store/abort")
        assert not world.files.exists("/store/abort")
        async with world.serving() as client:
            found = records(await client.pull("T"))
            assert [int(message.body) for message in found] == list(range(20))
            assert world.parts.offsets.get("T", "g", 0) == 7
            assert "g" in world.parts.groups.groups
            answer = await client.send("T", b"20")
            assert answer.fields["queueOffset"] == "20"

    world.run(main)


def test_a_stop_answers_what_waits_and_refuses_sends_with_a_code_to_retry_on(
    world: BrokerWorld,
) -> None:
    async def main() -> None:
        async with world.connected() as client, contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(world.running())
            await client.send("T")
            waiting = asyncio.create_task(client.pull("T", offset=1, suspend_ms=15_000))
            await world.clock.sleep_ms(10)
            stopping = asyncio.create_task(stack.aclose())
            await world.clock.sleep_ms(10)
            refused = await client.send("T")
            assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert "shutting down" in (refused.remark or "")
            begun = world.clock.monotonic_ms()
            assert (await waiting).code == ResponseCode.PULL_NOT_FOUND
            await stopping
            assert world.clock.monotonic_ms() - begun < 2_000

    world.run(main)


def test_the_fast_port_serves_all_but_pulls(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving() as client:
            await client.send("T")
            client.address = f"{world.server.address}:{PORT - 2}"
            assert (await client.send("T")).code == 0
            for code in (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE):
                answer = await client.call(code, {})
                assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED

    world.run(main)


def test_a_port_that_is_taken_is_an_error_and_leaves_a_clean_store(world: BrokerWorld) -> None:
    async def main() -> None:
        taken = await world.server.listen(asyncio.Protocol, "", PORT)
        with pytest.raises(OSError, match="in use"):
            async with world.running():
                pass
        taken.close()
        assert not world.files.exists("/store/abort")
        async with world.serving() as client:
            assert (await client.send()).code == 0

    world.run(main)


def test_two_brokers_cannot_have_one_store(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.running():
            with pytest.raises(StoreLocked):
                async with world.running(listen_port=20911):
                    pass

    world.run(main)


def test_every_unknown_code_is_answered_and_changes_nothing(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving() as client:
            end = world.parts.store.log.appended
            for code in (0, 1, 13, 99, 9_999, 65_535, 200_050, 2**31 - 1, -1):
                answer = await client.call(code)
                assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
                assert str(code) in (answer.remark or "")
            assert world.parts.store.log.appended == end

    world.run(main)


_GARBAGE = [
    "", "0", "-1", "x", "2147483648", "9" * 18, "9" * 25, "true", "T", "%RETRY%g", "\x00", "../..",
    "a" * 300,
]  # fmt: skip
_BODIES = [b"", b"{}", b"[]", b"null", b"\xff" * 50, b'{"mqSet":[{}]}', b"k=v\n", b"[" * 5_000]


def test_garbage_in_any_field_of_any_request_is_refused_without_surprise(
    world: BrokerWorld, caplog: pytest.LogCaptureFixture
) -> None:
    names = sorted(
        {field.name for header in REQUEST_HEADERS.values() if header for field in header._fields}
    )
    rng = random.Random(11)

    async def main() -> None:
        async with world.serving() as client:
            await client.send("T")
            for code in RequestCode:
                header = REQUEST_HEADERS.get(code)
                known = [field.name for field in header._fields] if header else names[:5]
                for _ in range(8):
                    chosen = {name: rng.choice(_GARBAGE) for name in known if rng.random() < 0.9}
                    await client.call(code, chosen, rng.choice(_BODIES), timeout_ms=40_000)
            assert (await client.send("T")).code == 0

    with caplog.at_level(logging.ERROR):
        world.run(main)
    assert [r.getMessage() for r in caplog.records if r.name == "skylark.net.switchboard"] == []


async def _reply(client: Client, to: str | None) -> tuple[int, dict[str, str]]:
    properties = {"CORRELATION_ID": "c-1", "MSG_TYPE": "reply"}
    if to is not None:
        properties["REPLY_TO_CLIENT"] = to
    answer = await client.send(
        "DefaultCluster_REPLY_TOPIC", b"answer", properties=properties,
        code=RequestCode.SEND_REPLY_MESSAGE_V2,
    )  # fmt: skip
    return answer.code, answer.fields


def test_a_reply_goes_to_the_client_that_asked_and_is_stored(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving() as replier, world.connected("asker") as asker:
            await asker.heartbeat(producers=("p",))
            code, fields = await _reply(replier, "asker")
            assert (code, fields["queueOffset"]) == (0, "0")
            (pushed,) = asker.told
            assert bytes(pushed.body) == b"answer"
            assert pushed.fields["storeHost"] == world.address
            assert "PUSH_REPLY_TIME" in pushed.fields["properties"]
            for nobody in (None, "unknown"):
                code, fields = await _reply(replier, nobody)
                assert code == 1
                assert fields["queueId"] == "0"
            asker.reply_code = 1
            assert (await _reply(replier, "asker"))[0] == 1
            stored = records(
                await replier.pull("DefaultCluster_REPLY_TOPIC", group="TOOLS_CONSUMER")
            )
            assert len(stored) == 4

    world.run(main)


# Settings.


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"broker_role": "SLAVE"}, "brokerId=1"),
        ({"broker_id": 1}, "a master has 0"),
        ({"acl_enable": True}, "aclEnable"),
        ({"enable_d_leger_commit_log": True}, "enableDLegerCommitLog"),
        ({"broker_name": "a/b"}, "brokerName"),
        ({"broker_cluster_name": ""}, "brokerClusterName"),
        ({"message_delay_level": "1s x"}, "messageDelayLevel"),
        ({"delete_when": "25"}, "deleteWhen"),
        ({"max_message_size": 16 << 20}, "maxMessageSize"),
        ({"tls_cert_path": "/c"}, "tlsKeyPath"),
        ({"tls_mode": "enforcing"}, "tlsCertPath"),
        ({"listen_port": 70_000}, "listen_port"),
    ],
)
def test_settings_that_cannot_work_are_refused_in_one_line(
    settings: dict[str, Any], word: str
) -> None:
    with pytest.raises(ConfigError) as refusal:
        BrokerConfig(**settings)
    assert word.lower() in str(refusal.value).lower()
    assert "\n" not in str(refusal.value)


def test_a_host_that_does_not_resolve_is_named() -> None:
    from skylark.net.network import resolved

    with pytest.raises(ConnectFailed, match="does not resolve"):
        resolved("no-such-host.invalid")
    assert resolved("127.0.0.1") == "127.0.0.1"
