"""`skylark cluster`: the command that restarts, progress in a pipe, and what people read."""

from __future__ import annotations

import asyncio
import io
import sys
from pathlib import Path

import pytest

from skylark.admin import DrainProgress, MemberStatus, Unread
from skylark.cli import cluster_view
from skylark.cli.progress import Progress
from skylark.cli.restarter import Restarter
from skylark.errors import ClientError, ConfigError

MEMBER = MemberStatus(broker="a b;c", broker_id=1, address="10.0.0.1:10911", role="SLAVE")
WRITER = "import sys; open(sys.argv[1], 'w').write('|'.join(sys.argv[2:]))"


def restarted(command: str | None, **settings: object) -> str:
    out = io.StringIO()
    with Progress(out) as progress:
        restarter = Restarter(progress, command=command, clusters={"a b;c": "C"}, **settings)  # type: ignore[arg-type]
        asyncio.run(restarter(MEMBER))
    return out.getvalue()


@pytest.mark.parametrize("uses_shell", [False, True])
def test_fields_are_filled_in_and_no_name_becomes_a_command(
    tmp_path: Path, uses_shell: bool
) -> None:
    seen = tmp_path / "seen"
    words = "{name} x{id} {address} {host} {port} {role} {cluster}"
    restarted(f'{sys.executable} -c "{WRITER}" {seen} {words}', uses_shell=uses_shell)
    assert seen.read_text() == "a b;c|x1|10.0.0.1:10911|10.0.0.1|10911|SLAVE|C"


def test_without_a_command_the_operator_is_asked() -> None:
    assert restarted(None) == (
        "restart a b;c (id 1) at 10.0.0.1:10911 now; waiting until it is back\n"
    )


@pytest.mark.parametrize("command", ["{nmae}", "", "  ", "x {", "x {}", "'x", "x {0}", "{name.x}"])
def test_a_command_that_cannot_be_filled_in_is_refused_at_once(command: str) -> None:
    with pytest.raises(ConfigError, match="--command"):
        Restarter(Progress(io.StringIO()), command=command)


def test_a_command_that_fails_hangs_or_is_not_there_is_said() -> None:
    with pytest.raises(ClientError, match="ended with exit code 3; see whether a b;c"):
        restarted(f'{sys.executable} -c "raise SystemExit(3)"')
    with pytest.raises(ClientError, match=r"has not ended after 0\.2 s"):
        restarted(f'{sys.executable} -c "import time; time.sleep(60)"', timeout_s=0.2)
    with pytest.raises(ConfigError, match="cannot be run: No such file"):
        restarted("/no/such/program {name}")


def test_progress_in_a_pipe_says_what_happens_and_repeats_nothing() -> None:
    out = io.StringIO()
    with Progress(out) as progress:
        progress.say("begun")
        for _ in range(3):
            progress.show("5 left")
        progress.show("4 left")  # Too soon after the last.
        progress.say("a \x1b[31mname")
    lines = out.getvalue().splitlines()
    assert lines[:2] == ["begun", "5 left"]
    assert len(lines) == 3
    assert "\x1b" not in lines[2]


class Terminal(io.StringIO):
    """What a person looks at."""

    def isatty(self) -> bool:
        return True


def test_progress_on_a_terminal_keeps_what_happened_above_the_line_that_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    out = Terminal()
    with Progress(out) as progress:
        progress.show("5 [red]left")
        progress.say("a \x1b[31mname")
        progress.show("4 left")
    assert "5 [red]left" in out.getvalue()
    assert "\x1b[31mname" not in out.getvalue()
    assert "4 left" in out.getvalue()


def test_a_drain_is_told_in_one_line() -> None:
    progress = DrainProgress(
        broker="a",
        unread=(Unread("g", "T", 2_000, 1), Unread("h", "T", 3_000, 0)),
        delayed=4,
        timers=2,
        repeats=1,
        half_messages=1,
        settle_ms=35_000,
    )
    assert not progress.is_done
    assert cluster_view.drain_line(progress) == (
        "a: 5,007 messages left: h has 3,000 of T and is offline (start it, or --ignore it), "
        "g has 2,000 of T, 4 delayed, 2 timers (1 repeat: cancel them), 1 half messages"
    )
    quiet = DrainProgress(broker="a", settle_ms=35_000, quiet_ms=5_000)
    assert cluster_view.drain_line(quiet) == "a: all is read; quiet for 30 s more and it is empty"
    assert DrainProgress(broker="a", settle_ms=35_000, quiet_ms=35_000).is_done


def test_bytes_are_sizes_for_people() -> None:
    assert [cluster_view.bytes_text(n) for n in (12, 2_048, 5 << 30)] == [
        "12 bytes", "2.0 KiB", "5.0 GiB",
    ]  # fmt: skip
