"""Offsets of broadcasting consumers: RocketMQ's file, read and written, damaged and restored."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from skylark.client.consumer_offsets import LocalOffsets
from skylark.model.queue import MessageQueue

HERE = MessageQueue("TopicTest", "broker-a", 0)
THERE = MessageQueue("TopicTest", "broker-a", 1)


def stored(folder: Path, offsets: dict[MessageQueue, int]) -> LocalOffsets:
    local = LocalOffsets(folder, "10.0.0.1@DEFAULT", "billing")
    asyncio.run(local.commit(offsets))
    return local


def loaded(folder: Path) -> LocalOffsets:
    local = LocalOffsets(folder, "10.0.0.1@DEFAULT", "billing")
    asyncio.run(local.load())
    return local


def read(local: LocalOffsets, queue: MessageQueue) -> int | None:
    return asyncio.run(local.read(queue))


def test_what_was_committed_is_found_again(tmp_path: Path) -> None:
    local = stored(tmp_path, {HERE: 12, THERE: 0})
    assert local.path == tmp_path / "10.0.0.1@DEFAULT" / "billing" / "offsets.json"
    again = loaded(tmp_path)
    assert (read(again, HERE), read(again, THERE)) == (12, 0)
    assert read(again, MessageQueue("Other", "broker-a", 0)) is None


def test_a_file_that_java_wrote_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "10.0.0.1@DEFAULT" / "billing" / "offsets.json"
    path.parent.mkdir(parents=True)
    path.write_text(
        '{\n\t"offsetTable":{{\n\t\t\t"brokerName":"broker-a",\n\t\t\t"queueId":0,\n'
        '\t\t\t"topic":"TopicTest"\n\t\t}:7,{\n\t\t\t"brokerName":"broker-a",\n'
        '\t\t\t"queueId":1,\n\t\t\t"topic":"TopicTest"\n\t\t}:9\n\t}\n}'
    )
    local = loaded(tmp_path)
    assert (read(local, HERE), read(local, THERE)) == (7, 9)


@pytest.mark.parametrize("damage", [b"", b"{", b'{"offsetTable":{', b"\x00" * 64])
def test_a_damaged_file_gives_way_to_the_one_before(
    tmp_path: Path, damage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    local = stored(tmp_path, {HERE: 1})
    asyncio.run(local.commit({HERE: 2}))
    local.path.write_bytes(damage)
    assert read(loaded(tmp_path), HERE) == 1
    assert "using the backup" in caplog.text


def test_nothing_is_written_when_nothing_has_changed(tmp_path: Path) -> None:
    local = stored(tmp_path, {HERE: 1})
    before = local.path.stat().st_mtime_ns
    asyncio.run(local.commit({HERE: 1}))
    assert local.path.stat().st_mtime_ns == before
    assert not local.path.with_name("offsets.json.bak").exists()


def test_a_save_that_is_given_up_does_not_overtake_the_next(tmp_path: Path) -> None:
    offsets = LocalOffsets(tmp_path, "client", "group")
    save, begun, may_end = offsets._save, threading.Event(), threading.Event()

    def slow_save(text: bytes) -> None:
        begun.set()
        assert may_end.wait(10)
        save(text)

    async def main() -> None:
        offsets._save = slow_save  # type: ignore[method-assign]
        saving = asyncio.ensure_future(offsets.commit({HERE: 5}))
        while not begun.is_set():
            await asyncio.sleep(0.001)
        saving.cancel()
        last = asyncio.ensure_future(offsets.commit({HERE: 6}))
        await asyncio.sleep(0.01)
        may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await saving
        assert await last

    asyncio.run(main())
    again = LocalOffsets(tmp_path, "client", "group")
    asyncio.run(again.load())
    assert asyncio.run(again.read(HERE)) == 6


def test_a_folder_that_cannot_be_written_is_mentioned_and_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "10.0.0.1@DEFAULT").write_text("in the way")
    local = LocalOffsets(tmp_path, "10.0.0.1@DEFAULT", "billing")
    asyncio.run(local.commit({HERE: 3}))
    assert "offsets not kept" in caplog.text
    (tmp_path / "10.0.0.1@DEFAULT").unlink()
    asyncio.run(local.commit({HERE: 3}))
    assert read(loaded(tmp_path), HERE) == 3
