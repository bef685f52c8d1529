"""Log lines that cannot be forged, files that roll, and repeats that are counted."""

import io
import json
import logging
import re
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from skylark import logs
from skylark.logs import FileOutput, JsonFormatter, RepeatLimit, StreamOutput, TextFormatter

logger = logging.getLogger("skylark.nameserver.toy")


@pytest.fixture
def screen() -> io.StringIO:
    return io.StringIO()


def record(
    message: str, *args: object, at_ms: int = 1_700_000_000_123, level: int = logging.INFO
) -> logging.LogRecord:
    made = logging.LogRecord("skylark.net.link", level, "f.py", 1, message, args, None)
    made.created = at_ms / 1000
    return made


@pytest.fixture
def untouched() -> Iterator[None]:
    root = logging.getLogger()
    before = (list(root.handlers), root.level)
    yield
    assert (list(root.handlers), root.level) == before, "the root logger belongs to the user"


@pytest.mark.usefixtures("untouched")
def test_setup_and_close_leave_every_logger_as_it_was(screen: io.StringIO) -> None:
    ours = logging.getLogger("skylark")
    before = (list(ours.handlers), ours.level, ours.propagate)
    with logs.setup(stream=screen):
        logger.info("hello")
        assert (list(ours.handlers), ours.level, ours.propagate) != before
    assert (list(ours.handlers), ours.level, ours.propagate) == before
    logger.info("after")
    assert "hello" in screen.getvalue()
    assert "after" not in screen.getvalue()


def test_text_has_time_level_logger_message_and_extras(screen: io.StringIO) -> None:
    with logs.setup(stream=screen):
        logger.warning("broker=%s gone", "broker-a", extra={"dur_ms": 5})
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} WARNING nameserver\.toy - "
        r"broker=broker-a gone dur_ms=5\n",
        screen.getvalue(),
    )


def test_json_is_one_object_per_line(screen: io.StringIO) -> None:
    with logs.setup(stream=screen, log_format="json"):
        logger.info("broker=%s\nnew", "a", extra={"topic": "T", "peer": ("h", 1), "event": "no"})
        try:
            raise ValueError("inner")
        except ValueError:
            logger.exception("failed")
    first, second = map(json.loads, screen.getvalue().splitlines())
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", first.pop("ts"))
    assert first == {
        "level": "info",
        "logger": "nameserver.toy",
        "event": "broker=a\nnew",
        "topic": "T",
        "peer": "('h', 1)",
    }
    assert second["traceback"].endswith("ValueError: inner")


def test_the_time_is_that_of_the_record() -> None:
    line = json.loads(JsonFormatter().format(record("x", at_ms=1_700_000_000_007)))
    assert line["ts"] == "2023-11-14T22:13:20.007Z"


@pytest.mark.parametrize(
    "hostile",
    ["a\nb", "a\rb", "\x1b[31mred", "\x9b31m", "\u2028", "\u202eabc", "\x00", "\x7f", "\u200b"],
)
def test_a_hostile_name_stays_within_its_line(hostile: str) -> None:
    for made in (record("topic=%s", hostile), record(hostile)):
        line = TextFormatter().format(made)
        assert line.isprintable()
        encoded = JsonFormatter().format(made)
        assert encoded.isascii()
        assert encoded.isprintable()


def test_a_hostile_extra_key_or_value_is_escaped_too() -> None:
    made = record("x")
    vars(made)["k\ney"] = "v\x1b"
    assert TextFormatter().format(made).endswith(r"x k\ney=v\x1b")


def test_names_in_other_scripts_stay_readable() -> None:
    assert TextFormatter().format(record("topic=%s", "订单")).endswith("topic=订单")


def test_a_traceback_cannot_pass_for_a_record() -> None:
    try:
        raise ValueError("x\n2026-11-15 00:00:00.000 ERROR forged - \x1b[2J")
    except ValueError as error:
        made = record("failed")
        made.exc_info = (ValueError, error, error.__traceback__)
    lines = TextFormatter().format(made).split("\n")
    assert all(line.startswith("    ") for line in lines[1:])
    assert "\x1b" not in "".join(lines)


def test_the_level_can_change_while_running(screen: io.StringIO) -> None:
    with logs.setup(stream=screen, level="warning") as running:
        logger.info("one")
        running.set_level("debug")
        logger.debug("two")
        running.set_level("error")
        logger.warning("three")
    assert "two" in screen.getvalue()
    assert "one" not in screen.getvalue()
    assert "three" not in screen.getvalue()


# Repeats


def limited(screen: io.StringIO, **bounds: int) -> StreamOutput:
    return StreamOutput(screen, TextFormatter(), RepeatLimit(**bounds))


def test_repeats_are_counted_whatever_their_arguments(screen: io.StringIO) -> None:
    output = limited(screen, burst_max=3, window_ms=10_000)
    for peer in range(50):
        output.handle(record("peer=%d closed", peer, at_ms=1_000_000 + peer))
    assert len(screen.getvalue().splitlines()) == 3
    output.handle(record("other", at_ms=1_012_000))
    lines = screen.getvalue().splitlines()
    assert lines[3].endswith("47 more like this were not logged: peer=%d closed")
    assert lines[4].endswith("other")


def test_a_new_window_logs_again(screen: io.StringIO) -> None:
    output = limited(screen, burst_max=1, window_ms=10_000)
    output.handle(record("x", at_ms=0))
    output.handle(record("x", at_ms=11_000))
    assert len(screen.getvalue().splitlines()) == 2


def test_what_was_held_back_is_told_at_the_latest_on_close(screen: io.StringIO) -> None:
    output = limited(screen, burst_max=1, window_ms=10_000)
    for _ in range(5):
        output.handle(record("x"))
    output.close()
    assert "4 more like this" in screen.getvalue()


def test_debug_lines_are_never_held_back(screen: io.StringIO) -> None:
    output = limited(screen, burst_max=1, window_ms=10_000)
    for _ in range(5):
        output.handle(record("x", level=logging.DEBUG))
    assert len(screen.getvalue().splitlines()) == 5


def test_a_clock_set_back_does_not_silence_a_message(screen: io.StringIO) -> None:
    output = limited(screen, burst_max=1, window_ms=10_000)
    output.handle(record("x", at_ms=10_000_000))
    output.handle(record("x", at_ms=1_000))
    assert len(screen.getvalue().splitlines()) == 2


def test_distinct_templates_do_not_grow_memory_without_bound(screen: io.StringIO) -> None:
    limit = RepeatLimit()
    for number in range(5_000):
        assert limit.filter(record(f"template {number}"))
    assert len(limit._windows) <= 1_024


# Files


def test_with_a_directory_the_file_gets_all_and_the_screen_the_errors(
    tmp_path: Path, screen: io.StringIO
) -> None:
    directory = tmp_path / "a" / "logs"
    with logs.setup(log_dir=str(directory), file_name="namesrv.log", stream=screen) as running:
        logger.info("quiet")
        logger.error("loud")
        assert running.path == str(directory / "namesrv.log")
    written = (directory / "namesrv.log").read_text()
    assert "quiet" in written
    assert "loud" in written
    assert "quiet" not in screen.getvalue()
    assert "loud" in screen.getvalue()


def test_only_the_owner_can_read_the_log(tmp_path: Path, screen: io.StringIO) -> None:
    with logs.setup(log_dir=str(tmp_path / "logs"), file_name="n.log", stream=screen):
        logger.info("x")
    assert stat.S_IMODE((tmp_path / "logs").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "logs" / "n.log").stat().st_mode) == 0o600


@pytest.mark.parametrize("log_dir", [None, "", "-"])
def test_without_a_directory_everything_goes_to_the_screen(
    log_dir: str | None, screen: io.StringIO
) -> None:
    with logs.setup(log_dir=log_dir, stream=screen):
        logger.info("x")
    assert "x" in screen.getvalue()


def test_a_directory_that_cannot_be_made_is_an_os_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        logs.setup(log_dir=str(tmp_path / "file" / "logs"))


def file_output(path: Path, **bounds: int) -> FileOutput:
    return FileOutput(str(path), logging.Formatter("%(message)s"), RepeatLimit(), **bounds)


def test_a_full_file_rolls_and_the_oldest_goes(tmp_path: Path) -> None:
    output = file_output(tmp_path / "n.log", file_bytes_max=10, files_max=3)
    for number in range(8):
        output.handle(record(f"line {number}"))
    output.close()
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "n.log": "line 7\n",
        "n.log.1": "line 6\n",
        "n.log.2": "line 5\n",
    }


def test_a_line_longer_than_a_file_is_written_all_the_same(tmp_path: Path) -> None:
    output = file_output(tmp_path / "n.log", file_bytes_max=10, files_max=2)
    output.handle(record("x" * 50))
    output.close()
    assert (tmp_path / "n.log").read_text() == "x" * 50 + "\n"


def test_two_processes_that_share_a_file_lose_nothing_when_one_rolls_it(tmp_path: Path) -> None:
    path = tmp_path / "n.log"
    first = file_output(path, file_bytes_max=20, files_max=5)
    second = file_output(path, file_bytes_max=20, files_max=5)
    for number in range(6):
        (first if number % 2 else second).handle(record(f"line {number}"))
    first.close()
    second.close()
    lines = [line for file in sorted(tmp_path.iterdir()) for line in file.read_text().splitlines()]
    assert sorted(lines) == [f"line {number}" for number in range(6)]
    assert all(len(file.read_bytes()) <= 20 for file in tmp_path.iterdir())


def test_a_file_removed_under_a_running_server_is_made_again(tmp_path: Path) -> None:
    output = file_output(tmp_path / "n.log")
    output.handle(record("one"))
    (tmp_path / "n.log").unlink()
    output.handle(record("two"))
    output.close()
    assert (tmp_path / "n.log").read_text() == "two\n"


def test_a_lone_surrogate_does_not_break_the_file(tmp_path: Path) -> None:
    output = file_output(tmp_path / "n.log")
    output.handle(record("\ud800"))
    output.close()
    assert (tmp_path / "n.log").read_text() == "\\ud800\n"


def test_an_importing_program_gets_no_handler_from_us() -> None:
    assert logging.getLogger("skylark").handlers == []
