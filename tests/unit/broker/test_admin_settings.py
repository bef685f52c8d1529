"""Settings by request: an allow-list, typed and ranged, written before it counts."""

from __future__ import annotations

import dataclasses
import re

import pytest
from broker_world import BrokerWorld, Client

from skylark.broker.config import BrokerConfig
from skylark.broker.processors import admin
from skylark.config import settings_of
from skylark.errors import StoreFull
from skylark.protocol.bodies import parse_properties
from skylark.protocol.codes import RequestCode, ResponseCode
from skylark.protocol.command import Command

FILE = "/store/broker.conf"


async def update(client: Client, text: str | bytes) -> Command:
    body = text.encode() if isinstance(text, str) else text
    return await client.call(RequestCode.UPDATE_BROKER_CONFIG, body=body)


async def shown(client: Client) -> dict[str, str]:
    answer = await client.call(RequestCode.GET_BROKER_CONFIG)
    assert re.fullmatch(r'\{"counter":\d+,"timestamp":\d+\}', answer.fields["version"])
    return parse_properties(answer.body)


def test_a_setting_is_changed_shown_written_and_has_a_new_version(world: BrokerWorld) -> None:
    async def main() -> None:
        world.files.make_directory("/store")
        world.files.replace(FILE, b"# mine\nbrokerName=broker-a\ntraceOn=true\n")
        async with world.serving(broker_config_path=FILE) as client:
            before = await client.call(RequestCode.GET_BROKER_CONFIG)
            answer = await update(client, "traceOn=false\nbrokerPermission=4\n")
            assert (answer.code, answer.remark) == (ResponseCode.SUCCESS, None)
            assert world.parts.live.current.trace_on is False
            settings = await shown(client)
            assert (settings["traceOn"], settings["brokerPermission"]) == ("false", "4")
            after = await client.call(RequestCode.GET_BROKER_CONFIG)
            assert after.fields["version"] != before.fields["version"]
            text = world.files.read(FILE).decode()
            assert "# mine" in text
            assert "traceOn=false" in text
            sent = await client.send("Other")
            assert sent.fields["TRACE_ON"] == "false"

    world.run(main)


ALLOWED = {known.key for known in settings_of(BrokerConfig).values() if known.remote}
VALUES = ("/etc/passwd", "1", "true", "$(id)", "", "127.0.0.1:1")


def test_what_may_be_changed_is_no_path_no_secret_and_no_address() -> None:
    assert {"brokerPermission", "traceOn", "longPollingEnable", "logLevel"} <= ALLOWED
    for known in settings_of(BrokerConfig).values():
        assert not (known.remote and (known.path or known.secret)), known.key
        assert not (known.remote and re.search(r"(?i)addr|host|ip1|ip2|path|dir$", known.key))


def test_no_other_key_is_changed_whatever_the_value(world: BrokerWorld) -> None:
    async def main() -> None:
        keys = [known.key for known in settings_of(BrokerConfig).values()]
        keys += [known.rocketmq_key or "" for known in settings_of(BrokerConfig).values()]
        keys += ["filterServerNums", "messageStorePlugIn", "nonsense", "__class__", "a" * 200]
        async with world.serving(broker_config_path=FILE) as client:
            before = world.parts.live.current
            for key in sorted({*keys} - ALLOWED - {""}):
                for value in VALUES:
                    answer = await update(client, f"{key}={value}\n")
                    assert answer.code == ResponseCode.NO_PERMISSION, (key, value)
                    assert len(answer.remark or "") < 300
            # One that is allowed does not carry one that is not.
            answer = await update(client, "traceOn=false\nstorePathRootDir=/x\n")
            assert answer.code == ResponseCode.NO_PERMISSION
            assert world.parts.live.current == before
            assert not world.files.exists(FILE)

    world.run(main)


@pytest.mark.parametrize(
    "text",
    ["brokerPermission=9", "brokerPermission=x", "traceOn=maybe", "logLevel=../x",
     "waitTimeMillsInSendQueue=-1", b"traceOn=\xff", "x=\\u12", "traceOn=true\n" * 10_000],
)  # fmt: skip
def test_a_value_that_does_not_fit_is_refused(world: BrokerWorld, text: str | bytes) -> None:
    async def main() -> None:
        async with world.serving() as client:
            before = world.parts.live.current
            assert (await update(client, text)).code == ResponseCode.SYSTEM_ERROR
            assert world.parts.live.current == before

    world.run(main)


def test_an_operators_black_list_narrows_what_is_allowed(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving(config_black_list="traceOn") as client:
            assert (await update(client, "traceOn=false")).code == ResponseCode.NO_PERMISSION
            assert (await update(client, "logLevel=debug")).code == ResponseCode.SUCCESS

    world.run(main)


def test_a_change_that_cannot_be_written_is_not_made_and_names_no_file(
    world: BrokerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with world.serving(broker_config_path=FILE) as client:

            def refuse(path: str, content: bytes) -> None:
                raise StoreFull(f"{path}: no room")

            monkeypatch.setattr(world.files, "replace", refuse)
            answer = await update(client, "traceOn=false")
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert "/store" not in (answer.remark or "")
            assert world.parts.live.current.trace_on is True
            monkeypatch.undo()

    world.run(main)


def test_no_answer_to_an_operator_shows_a_path_or_a_secret(world: BrokerWorld) -> None:
    """Every code of the admin table, asked without and with nonsense in every field."""
    planted = "planted-9f3a"
    names = """topic group consumerGroup producerGroup clientId msgId statsName statsKey srcGroup
        destGroup compareGroup groupName timestamp perm readQueueNums writeQueueNums defaultTopic
        topicFilterType offset queueId index count"""
    fields = dict.fromkeys(names.split(), "1")

    async def main() -> None:
        settings = {
            "rocketmq_home": f"/{planted}/home",
            "store_path_commit_log": f"/{planted}/log",
            "broker_config_path": f"/{planted}/broker.conf",
            "log_dir": f"/{planted}/logs",
        }
        async with world.serving(**settings) as client:
            await client.send()
            for code in admin.table(world.parts):
                for given in ({}, fields):
                    answer = await client.call(code, given)
                    text = f"{answer.fields}{answer.remark}{bytes(answer.body)!r}"
                    assert planted not in text, RequestCode(code).name

    world.run(main)


def test_expired_queues_and_files_are_cleaned_on_request(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving(file_reserved_time=0, delete_when="00") as client:
            for _ in range(10):
                await client.send("Old", body=b"x" * 12_000)
            for _ in range(10):
                await client.send("New", body=b"x" * 12_000)
            assert world.parts.store.log.start == 0
            answer = await client.call(RequestCode.DELETE_EXPIRED_COMMITLOG)
            assert answer.code == ResponseCode.SUCCESS
            await world.clock.sleep_ms(120_000)
            assert world.parts.store.log.start > 0
            answer = await client.call(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)
            assert answer.code == ResponseCode.SUCCESS
            names = {topic for topic, _ in world.parts.store.queues.names}
            assert "Old" not in names
            assert "New" in names

    world.run(main)


def test_whoever_runs_the_broker_hears_of_a_change(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving() as client:
            heard: list[BrokerConfig] = []
            assert world.broker is not None
            world.broker._on_config = heard.append
            await update(client, "brokerPermission=4")
            assert [dataclasses.asdict(c)["broker_permission"] for c in heard] == [4]

    world.run(main)


def test_codes_of_later_work_are_answered_as_unknown(world: BrokerWorld) -> None:
    async def main() -> None:
        async with world.serving() as client:
            for code in (50, 51, 52, 53, 54, 27, 22):
                answer = await client.call(code)
                assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED

    world.run(main)
