"""`skylark pipeline replay`: what is typed is what is sent, or is refused; without Spark."""

import json
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from skylark.cli import exits, pipeline_spark
from skylark.cli import replay as command
from skylark.cli.main import main
from skylark.errors import ConfigError, SkylarkError
from skylark.spark import replay
from skylark.spark.catalogue import Catalogue, Entry
from skylark.spark.pipelines import Run, RunDirectory, RunState

NOW_MS = 1_794_726_000_000
HOUR_MS = 3_600_000
OLD = {"topic": "T", "to": "U", "namesrv": "127.0.0.1:1", "to_namesrv": "127.0.0.1:1"}


class _Servers:
    """Servers that have every topic, as far as commands ask before Spark starts."""

    def brokers(self):
        return {}

    def queues(self, topics):
        return []

    def writable_queues(self, topic):
        return []


class World:
    """Commands without Spark: each begins, chooses, and fails before the first message is sent."""

    def __init__(self, monkeypatch, directory, capsys):
        self.directory = directory
        self.capsys = capsys
        self.now_ms = NOW_MS
        self.previewed = []
        self.chosen = []
        clock = SimpleNamespace(time_ns=lambda: self.now_ms * 1_000_000)
        monkeypatch.setattr(command, "time", clock)
        monkeypatch.setattr(command, "spark_session", lambda *_, **__: nullcontext())
        monkeypatch.setattr(command, "_previewed", self._preview)
        monkeypatch.setattr(pipeline_spark, "cluster_of", lambda _: nullcontext(_Servers()))
        monkeypatch.setattr(replay, "_write_copies", self._write)
        monkeypatch.setattr(replay, "_in_order", lambda _: (3,))
        monkeypatch.setattr(Run, "start", self._fail)

    def _preview(self, spark, selection):
        self.previewed.append(selection)
        return {"messages": 3}

    def _write(self, spark, selection, folder):
        self.chosen.append(selection)
        folder.mkdir(parents=True)

    def _fail(self, *_):
        raise SkylarkError("killed")

    def __call__(self, *words):
        code = main(["pipeline", *map(str, words)])
        return code, self.capsys.readouterr().err.strip()

    def replay(self, *words):
        return self("replay", "T", "--to", "U", "--yes", *words)

    def sends(self, name):
        """The selection that the state of a replay has."""
        return self.directory.read(name).flags["selection"]


GOES_ON = "going on where it was\nskylark: killed"


@pytest.fixture
def world(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("SKYLARK_RUN_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("NAMESRV_ADDR", "127.0.0.1:1")
    directory = RunDirectory.default()
    directory.root.mkdir()
    return World(monkeypatch, directory, capsys)


# 1. A name, and another replay that has it.


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("replay", "T", "--to", "V", "--from", "1h"), "sends T to U; go on"),
        (("replay", "S", "--to", "U", "--from", "1h"), "sends T to U; go on"),
        (("replay", "T", "--to", "U"), "sends T to U with --from 1h; go on"),
        (("replay", "T", "--to", "U", "--from", "2h"), "sends T to U with --from 1h; go on"),
        (
            ("replay", "T", "--to", "U", "--from", "1h", "--tag", "A", "--rate", "5"),
            "sends T to U with no --tag and no --rate; go on",
        ),
        (
            ("replay", "T", "--to", "U", "--from", "1h", "--where", "tag = 'A'\nor true"),
            "sends T to U with no --where; go on",
        ),
        (
            ("replay", "T", "--to", "U", "--from", "1h", "--body-mode", "dropmalformed"),
            "sends T to U with no --body-mode; go on",
        ),
        (
            ("replay", "T", "--to", "U", "--from", "1h", "--to-namesrv", "mq:9"),
            "sends T to U with --to-namesrv 127.0.0.1:1; go on",
        ),
    ],
)
def test_a_corrected_command_does_not_go_on_with_the_wrong_replay(world, words, expected):
    assert world.replay("--name", "X", "--from", "1h") == (exits.FAILED, "skylark: killed")
    before = world.directory.read("X")
    code, line = world(*words, "--yes", "--name", "X")
    assert code == exits.WRONG_USE
    assert line == (
        f"skylark: --name X: that replay {expected} with it by `skylark pipeline resume X`, or "
        "choose another name"
    )
    assert world.directory.read("X") == before
    assert len(world.chosen) == len(world.previewed) == 1


def test_the_same_command_goes_on_with_what_it_began_though_its_times_have_moved(world):
    words = ("--from", "1h", "--tag", "A", "--name", "X", "--body-mode", "FailFast")
    world.replay(*words)
    began = world.sends("X")
    assert (began["from_ms"], began["until_ms"]) == (NOW_MS - HOUR_MS, NOW_MS)
    world.now_ms += HOUR_MS
    for again in (("resume", "X"), ("replay", "T", "--to", "U", "--yes", *words)):
        assert world(*again) == (exits.FAILED, f"X: {GOES_ON}")
        assert world.sends("X") == began
    # What has been resumed knows as well how it was typed; failfast is what goes without saying.
    assert world.replay(*words[:-2]) == (exits.FAILED, f"X: {GOES_ON}")
    assert "with --tag A; go on" in world.replay("--from", "1h", "--name", "X")[1]
    assert len(world.previewed) == 1


def test_flags_for_spark_are_those_of_the_last_command(world):
    world.replay("--name", "X", "--master", "local[7]", "--conf", "spark.driver.memory=1g")
    more = ("--conf", "spark.driver.memory=4g")
    assert world.replay("--name", "X", *more) == (exits.FAILED, f"X: {GOES_ON}")
    for _ in range(2):
        kept = world.directory.read("X").flags
        assert (kept["master"], kept["conf"]) == (None, ["spark.driver.memory=4g"])
        assert world("resume", "X") == (exits.FAILED, f"X: {GOES_ON}")


def test_what_differs_is_told_in_one_line(world):
    world.replay("--name", "X", "--where", "tag = 'A'\nor true")
    (line,) = world.replay("--name", "X")[1].splitlines()
    assert "sends T to U with --where 'tag = " in line


def test_the_same_command_without_a_name_finds_its_own(world):
    world.replay("--from", "1h")
    (name,) = world.directory.names()
    world.now_ms += 1
    assert world.replay("--from", "1h") == (exits.FAILED, f"{name}: {GOES_ON}")
    assert world.directory.names() == [name]


def test_a_replay_of_an_older_version_is_found_by_its_made_up_name_or_its_times(world):
    old = {**OLD, "archive": None, "from_ms": None, "until_ms": NOW_MS, "key": None, "tag": None,
           "where": None, "rate": None}  # fmt: skip
    made_up = replay.default_name("T", {"from": None, "until": None, **old, "until_ms": 0,
                                        "from_ms": 0})  # fmt: skip
    for name in (made_up, "X"):
        state = RunState(name, kind="replay", status="failed", flags={"selection": old},
                         checkpoint=str(world.directory.root / name))  # fmt: skip
        world.directory.write(state)
    world.now_ms += HOUR_MS
    assert world.replay() == (exits.FAILED, f"{made_up}: {GOES_ON}")
    code, line = world.replay("--name", "X")
    assert code == exits.WRONG_USE
    assert (
        f"sends T to U with --until {NOW_MS}; go on with it by `skylark pipeline resume X`" in line
    )
    line = world.replay("--name", "X", "--until", NOW_MS, "--tag", "A")[1]
    assert "sends T to U with no --tag; go on" in line
    assert world.replay("--name", "X", "--until", NOW_MS) == (exits.FAILED, f"X: {GOES_ON}")


# 2. A folder, and what another replay chose there.


def test_a_corrected_command_does_not_send_what_its_folder_holds_of_another(world, tmp_path):
    world.replay("--checkpoint", tmp_path / "D", "--tag", "A")
    code, line = world.replay("--checkpoint", tmp_path / "D", "--tag", "B")
    assert code == exits.WRONG_USE
    assert line == (
        f"skylark: --checkpoint {tmp_path / 'D'}: it holds the choice of another replay, T to U "
        "with --tag A; name another folder"
    )
    assert (len(world.chosen), len(world.previewed), len(world.directory.names())) == (1, 1, 1)


def test_the_same_command_finds_its_folder_where_its_state_is_gone(world, tmp_path):
    words = ("--checkpoint", tmp_path / "D", "--from", "1h")
    world.replay(*words)
    (name,) = world.directory.names()
    began = world.sends(name)
    world.directory.path(name, "json").unlink()
    world.now_ms += HOUR_MS
    assert world.replay(*words) == (exits.FAILED, f"{name}: {GOES_ON}")
    assert world.sends(name) == began
    assert (len(world.chosen), len(world.previewed)) == (1, 1)
    world.directory.path(name, "json").unlink()
    commits = tmp_path / "D" / "target" / "commits"
    commits.mkdir(parents=True)
    (commits / "0").touch()
    code, line = world.replay(*words)
    assert code == exits.WRONG_USE
    assert line.endswith("what it holds has been sent already, T to U; name another folder")


@pytest.mark.parametrize("words", [(), ("--from", "1h"), ("--until", "now", "--from", NOW_MS - 5)])
@pytest.mark.parametrize("is_typed", [True, False])
def test_a_choice_of_an_older_version_is_gone_on_with(world, tmp_path, words, is_typed):
    words = (*words, *(("--checkpoint", tmp_path / "D") if is_typed else ()))
    world.replay(*words)
    (name,) = world.directory.names()
    began = world.sends(name)
    plan = Path(world.directory.read(name).checkpoint) / "plan.json"
    older = json.loads(plan.read_bytes())
    del older["typed"], older["selection"]["body_mode"]
    plan.write_text(json.dumps(older))
    world.directory.path(name, "json").unlink()
    world.now_ms += HOUR_MS
    for other in (("--until", NOW_MS + 1), ("--from", "7")):
        if other[0] not in words and is_typed:
            assert "the choice of another replay" in world.replay(*words, *other)[1]
    assert world.replay(*words) == (exits.FAILED, f"{name}: {GOES_ON}")
    assert world.sends(name) == began


def test_a_folder_that_a_name_has_left_is_not_sent_for_another(world):
    world.replay("--name", "X")
    world.directory.path("X", "json").unlink()
    code, line = world.replay("--name", "X", "--key", "k")
    assert code == exits.WRONG_USE
    assert line == (
        "skylark: --name X: its folder holds the choice of another replay, T to U with no --key; "
        "choose another name"
    )


def test_a_folder_is_not_passed_over_for_the_one_that_the_replay_has(world, tmp_path):
    world.replay("--name", "X")
    code, line = world.replay("--name", "X", "--checkpoint", tmp_path / "D")
    assert code == exits.WRONG_USE
    has = world.directory.root / "replays" / "X"
    assert f"--checkpoint {tmp_path / 'D'}: replay X keeps its progress in {has};" in line
    assert world.replay("--name", "X", "--checkpoint", has) == (exits.FAILED, f"X: {GOES_ON}")


def test_a_choice_that_cannot_be_read_is_one_line(world, tmp_path):
    (tmp_path / "plan.json").write_text('{"rows": [3]}')
    code, line = world.replay("--checkpoint", tmp_path)
    assert code == exits.WRONG_USE
    assert line.startswith(f"skylark: {tmp_path}/plan.json: is no choice of a replay: ")
    assert line.endswith("; name another folder")


# 3. Times at the beginning.


@pytest.mark.parametrize("until", ["first", "0", "900000d", "1960-01-01"])
def test_an_end_before_every_message_is_not_now(world, until):
    world.replay("--name", "X", "--until", until)
    assert world.sends("X")["until_ms"] == 0


def test_what_goes_without_an_end_ends_now(world):
    world.replay("--name", "X", "--from", "1960-01-01")
    assert (world.sends("X")["from_ms"], world.sends("X")["until_ms"]) == (0, NOW_MS)


# 4. States that are damaged, or newer.


@pytest.mark.parametrize(
    "flags",
    [
        {},
        {"selection": None},
        {"selection": "T"},
        {"selection": {"topic": "T", "to": "U"}},
        {"selection": {**OLD, "namesrv": None}},
        {"selection": {**OLD, "from_ms": "soon"}},
        {"selection": {**OLD, "rate": "5"}},
        {"selection": {**OLD, "topic": 5}},
        {"selection": OLD, "once": "yes"},
        {"selection": OLD, "packages": 5},
        {"selection": OLD, "checkpoint": ""},
    ],
)
@pytest.mark.parametrize("words", [("resume", "X"), ("replay", "T", "--to", "U", "--name", "X")])
def test_a_state_that_does_not_say_what_is_sent_is_one_line(world, flags, words):
    folder = flags.get("checkpoint", str(world.directory.root / "D"))
    world.directory.write(
        RunState("X", kind="replay", status="failed", flags=flags, checkpoint=folder)
    )
    code, line = world(*words)
    assert code == exits.WRONG_USE
    path = world.directory.path("X", "json")
    assert line.startswith(f"skylark: {path}: does not say what the replay sends: ")
    assert line.endswith("; begin it anew with another --name")
    assert "\n" not in line


def test_what_a_newer_version_has_noted_is_passed_over(world):
    newer = {"selection": {**OLD, "priority": 3, "until_ms": NOW_MS}, "colour": "red"}
    folder = str(world.directory.root / "D")
    world.directory.write(
        RunState("X", kind="replay", status="failed", flags=newer, checkpoint=folder)
    )
    assert world("resume", "X") == (exits.FAILED, f"X: {GOES_ON}")
    assert world.chosen == [replay.Selection(**OLD, until_ms=NOW_MS)]


# 5. Wrong use is said at once.


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--name", "../../x", "--checkpoint", "{dir}/new"), "--name '../../x': letters, digits"),
        (("--archive", "{dir}/nolake", "--checkpoint", "{dir}/new"), "there is none; make it with"),
        (("--body-mode", "permissive", "--checkpoint", "{dir}/new"),
         "--body-mode permissive: a message without a body cannot be sent"),
        (("--until", "999999999999999", "--checkpoint", "{dir}/new"),
         "--until 999999999999999: the year 9998 is the last"),
        (("--body-mode", "maybe", "--checkpoint", "{dir}/new"), "bodyMode='maybe': one of"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("more", [(), ("--dry-run",)])
def test_wrong_use_is_said_before_servers_are_asked_and_folders_made(
    world, tmp_path, monkeypatch, words, expected, more
):
    def ask(namesrv):
        raise AssertionError("nobody is asked")

    monkeypatch.setattr(pipeline_spark, "cluster_of", ask)
    code, line = world.replay(*(word.format(dir=tmp_path) for word in words), *more)
    assert code == exits.WRONG_USE
    assert expected in line
    assert "\n" not in line
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


def test_a_replay_goes_on_without_the_archive_that_it_was_chosen_from(world, tmp_path):
    Catalogue(tmp_path / "lake").add(Entry(0, 0, (), {}))
    words = ("--archive", tmp_path / "lake", "--name", "X")
    assert world.replay(*words) == (exits.FAILED, "skylark: killed")
    (tmp_path / "lake").rename(tmp_path / "away")
    assert world.replay(*words) == (exits.FAILED, f"X: {GOES_ON}")


# 6. Bodies that cannot be read.


@pytest.mark.parametrize(
    ("typed", "meant"), [("failfast", None), ("DropMalformed", "dropmalformed")]
)
def test_a_body_mode_is_part_of_what_is_chosen(world, typed, meant):
    world.replay("--name", "X", "--body-mode", typed)
    assert world.sends("X")["body_mode"] == meant
    folder = world.directory.root / "replays" / "X"
    plan = json.loads((folder / "plan.json").read_bytes())
    assert plan["selection"]["body_mode"] == meant
    assert plan["typed"]["body_mode"] == meant
    with pytest.raises(ConfigError, match="another replay, T to U; name another folder"):
        replay.choose(None, replay.Selection(**OLD, rate=7), folder)
