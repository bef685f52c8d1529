"""`skylark store` as it is used: by its command, on stores at rest and at work."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from store_writer import body_of, config_of

from skylark.cli.main import main
from skylark.clock import SystemClock
from skylark.protocol.record import decode_record
from skylark.store import FlushDiskType, MessageStore, OsFiles
from skylark.testing.stores import read_all

CYCLES = 10
HERE = Path(__file__).parent


class Writer:
    """The writer's process, and what it has acknowledged so far."""

    def __init__(self, root: Path, flush: FlushDiskType) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "store_writer.py"), str(root), flush],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.acked: list[tuple[str, int, int, int, int, int]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            topic, *numbers = line.split()
            queue_id, offset, physical, end, number = map(int, numbers)
            self.acked.append((topic, queue_id, offset, physical, end, number))

    def wait_for(self, count: int) -> None:
        deadline = time.monotonic() + 60
        while len(self.acked) < count:
            assert self._process.poll() is None, "the writer has ended"
            assert time.monotonic() < deadline, f"only {len(self.acked)} of {count} in a minute"
            time.sleep(0.005)

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            assert self._process.wait(30) == 0
        finally:
            self._process.kill()
            self._process.wait()
            self._reader.join(10)
            assert self._process.stdout is not None
            self._process.stdout.close()


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["store", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize("flush", list(FlushDiskType))
def test_a_backup_under_load_restores_to_all_that_was_acknowledged_before_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flush: FlushDiskType
) -> None:
    chance = random.Random(36)
    root = tmp_path / "store"
    with Writer(root, flush) as writer:
        writer.wait_for(200)
        for cycle in range(CYCLES):
            writer.wait_for(len(writer.acked) + chance.randrange(20, 100))
            acked_before = list(writer.acked)
            kept, again = tmp_path / f"backup{cycle}", tmp_path / f"again{cycle}"
            code, out, err = run(capsys, "backup", str(root), str(kept), "--json")
            assert code == 0, err
            report = json.loads(out)
            mark = report["mark"]
            assert all(end <= mark for *_, end, _ in acked_before)
            code, out, err = run(capsys, "restore", str(kept), str(again), "--verify", "--json")
            assert code == 0, err
            assert json.loads(out)["is_verified"] is True
            judge(again, writer, mark, flush)
    code, out, _ = run(capsys, "check", str(root))
    assert code == 0, out
    assert out.startswith("clean: ")
    # The links in the oldest backup still hold what they held.
    code, out, _ = run(capsys, "restore", str(tmp_path / "backup0"), str(tmp_path / "last"))
    assert code == 0


def judge(root: Path, writer: Writer, mark: int, flush: FlushDiskType) -> None:
    """The restored store is a prefix of what was written, with all acknowledged below the mark."""
    with MessageStore.open(config_of(str(root), flush), OsFiles(), SystemClock()) as store:
        assert store.log.appended == mark
        found = {}
        for topic, queue_id in store.queues.names:
            for expected, record in enumerate(read_all(store, topic, queue_id)):
                message = decode_record(record)
                assert message.queue_offset == expected
                number = message.born_at_ms - 1_700_000_000_000
                assert message.body == body_of(number)
                found[topic, queue_id, message.queue_offset] = (message.physical_offset, number)
        for topic, queue_id, offset, physical, end, number in list(writer.acked):
            if end <= mark:
                assert found[topic, queue_id, offset] == (physical, number)
        assert sorted(number for _, number in found.values()) == list(range(len(found)))


def test_a_store_at_work_is_checked_and_dumped_and_not_rebuilt(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "store"
    with Writer(root, FlushDiskType.ASYNC_FLUSH) as writer:
        for _ in range(5):
            writer.wait_for(len(writer.acked) + 200)
            code, out, _ = run(capsys, "check", str(root))
            assert code == 0, out
            assert out.startswith("running: ")
        code, out, _ = run(capsys, "dump", str(root), "--limit", "3", "--json")
        assert code == 0
        assert json.loads(out.splitlines()[0])["physical_offset"] == 0
        code, _, err = run(capsys, "rebuild", str(root))
        assert code == 2
        assert "another process has the store open; stop that broker first" in err


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from store_writer import message_of

    root = tmp_path_factory.mktemp("store") / "store"
    config = config_of(str(root), FlushDiskType.ASYNC_FLUSH)
    with MessageStore.open(config, OsFiles(), SystemClock()) as opened:
        opened.mark_open()
        opened.put([message_of(number) for number in range(500)])
    return root


def test_dump_shows_records_by_offset_topic_queue_and_key(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def rows(*arguments: str) -> list[dict[str, object]]:
        code, out, err = run(capsys, "dump", str(store), *arguments, "--json")
        assert code == 0, err
        return [json.loads(line) for line in out.splitlines()]

    every = rows("records", "--limit", "0")
    assert len(every) == 500
    assert every[0]["tag"] == "Tag0"
    assert every[0]["born_host"] == "[2001:db8::1]:10911"
    third = every[2]
    one = rows("records", "--physical", str(third["physical_offset"]), "--body")
    assert len(one) == 1
    assert one[0].pop("body_base64")
    assert one[0] == third
    some = rows(
        "records", "--physical", f"{third['physical_offset']}:{every[6]['physical_offset']}"
    )
    assert some == every[2:6]
    assert rows("records", "--key", "key-77") == [every[77]]
    of_queue = rows("records", "--topic", "Topic1", "--queue", "2", "--limit", "0")
    assert of_queue == [e for e in every if (e["topic"], e["queue"]) == ("Topic1", 2)]
    entries = rows("queue", "--topic", "Topic1", "--queue", "2", "--limit", "0")
    assert [e["physical_offset"] for e in entries] == [e["physical_offset"] for e in of_queue]
    assert rows("queue", "--topic", "Topic1", "--queue", "2", "--offsets", "3:5") == entries[3:5]
    found = rows("index", "--topic", "Topic2", "--key", "key-77")
    assert every[77]["physical_offset"] in [row["physical_offset"] for row in found]
    assert len(rows("index", "--limit", "0")) == 500


def test_dump_as_a_table_ends_with_what_there_is_more(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, "dump", str(store), "--limit", "2")
    assert code == 0
    lines = out.splitlines()
    assert lines[0].split()[:2] == ["PHYSICAL", "OFFSET"]
    assert len(lines) == 3
    assert "there is more" in err


def test_check_and_rebuild_by_command(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    queue = store / "consumequeue" / "Topic0" / "1" / f"{0:020d}"
    content = queue.read_bytes()
    queue.write_bytes(content[:10] + b"\xff" + content[11:])
    code, out, _ = run(capsys, "check", str(store))
    assert code == 1
    assert out.splitlines()[0].startswith(f"{queue} at 0: entry 0 says offset")
    assert out.splitlines()[0].endswith(f"run: skylark store rebuild {store}")
    assert out.splitlines()[-1].endswith("1 finding")
    code, out, _ = run(capsys, "check", str(store), "--json")
    report = json.loads(out)
    assert (code, report["state"], len(report["findings"])) == (1, "clean", 1)
    assert report["geometry"]["index_slots"] == 97
    code, out, _ = run(capsys, "rebuild", str(store))
    assert (code, out.startswith("12 queues and 2 index files built")) == (0, True)
    assert queue.read_bytes() == content
    assert run(capsys, "check", str(store))[0] == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["check", "/nowhere"], "does not exist; give the root of a store"),
        (["check", "{}", "--log-file-bytes", "7"], "mappedFileSizeCommitLog: 7 is not between"),
        (["check", "{}", "--delay-levels", "soon"], "is not a number with s, m, h or d"),
        (["check", "{}", "-c", "/nowhere.conf"], "/nowhere.conf"),
        (["dump", "{}", "everything"], "use one of: records, queue, index"),
        (["dump", "{}", "queue"], "dump queue needs --topic and --queue"),
        (["dump", "{}", "queue", "--topic", "Topic0", "--queue", "9"], "it has queue 0, 1, 2, 3"),
        (["dump", "{}", "queue", "--topic", "../x", "--queue", "0"], "there is no such topic"),
        (["dump", "{}", "index", "--key", "k"], "takes --topic and --key together"),
        (["dump", "{}", "--physical", "a:b"], "is not a range such as 100:200"),
        (["dump", "{}", "--physical", ":"], "is not a range such as 100:200"),
        (["dump", "{}", "--offsets", "1:2"], "--offsets is for dump queue"),
        (["dump", "{}", "--limit", "-1"], "use 0 for all"),
        (["backup", "{}", "{}"], "choose another name"),
        (["backup", "/nowhere", "/nowhere-else"], "does not exist; give the root of a store"),
        (["restore", "/nowhere", "/nowhere-else"], "name a backup's directory or tar archive"),
        (["restore", "{}", "/nowhere-else"], "this is no backup"),
        (["check"], "Missing argument"),
        (["mend", "{}"], "No such command"),
    ],
)
def test_each_wrong_thing_gives_one_line_with_the_next_step(
    store: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    code, out, err = run(capsys, *(word.replace("{}", str(store)) for word in arguments))
    assert code == 2
    assert out == ""
    assert len(err.splitlines()) == 1, err
    assert says in err
    assert not Path("/nowhere-else").exists()


def test_a_broker_s_config_file_gives_the_sizes(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "broker.conf"
    file.write_text(
        "mappedFileSizeCommitLog=65536\nmappedFileSizeConsumeQueue=4000\nmaxHashSlotNum=97\n"
        "maxIndexNum=500\n"
    )
    assert run(capsys, "check", str(store), "-c", str(file))[0] == 0
    file.write_text("mappedFileSizeCommitLog=65536\nmappedFileSizeConsumeQueue=4000\n")
    code, out, _ = run(capsys, "check", str(store), "-c", str(file))
    assert code == 1
    assert "expected 420000040" in out
