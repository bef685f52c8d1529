"""The `skylark` command: dispatch, help, exit codes, and one line per mistake."""

import gc
import json
import subprocess
import sys
from pathlib import Path

import pytest

import skylark
from skylark.cli import main as cli
from skylark.errors import CallTimeout, CorruptRecord


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = cli.main(list(arguments))
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.parametrize("arguments", [("version",), ("--version",)])
def test_the_version_is_printed(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(capsys, *arguments) == (0, f"skylark {skylark.__version__}\n", "")


def test_the_version_has_a_json_form(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "version", "--json")
    assert (code, json.loads(out)) == (0, {"version": skylark.__version__})


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_lists_every_command_that_exists(
    flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run(capsys, flag)
    assert code == 0
    listed = {
        line.split()[0] for line in out.partition("Commands:")[2].splitlines() if line[:2] == "  "
    }
    assert {*cli.ROLES, *cli.NOUNS, "version"} <= listed


def test_no_command_at_all_shows_the_help_and_is_wrong_use(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out, err = run(capsys)
    assert code == 2
    assert out == ""
    assert "Commands:" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["verson"], "skylark: No such command 'verson'. Did you mean 'version'?\n"),
        (["namesvr"], "skylark: No such command 'namesvr'. Did you mean 'namesrv'?\n"),
        (["config", "explian"], "skylark: No such command 'explian'. Did you mean 'explain'?\n"),
        (["config", "explain"], "skylark: Missing argument 'key'; see skylark config explain -h\n"),
    ],
)
def test_a_mistyped_command_is_one_line_with_the_nearest(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, *arguments)
    # Quoting and capitals of an argument's name differ between versions of typer.
    assert (code, out, err.replace("KEY", "key")) == (2, "", message)


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (CallTimeout("h:1", 5), 3, "h:1: no answer within 5 ms; is the server running"),
        (CorruptRecord("bad"), 1, "bad"),
        (PermissionError(13, "Permission denied", "/x"), 2, "cannot use /x: Permission denied; "),
        (OSError(28, "No space left on device"), 1, "No space left on device"),
    ],
)
def test_an_error_ends_in_its_exit_code(
    error: Exception,
    code: int,
    text: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise error

    monkeypatch.setattr("skylark.cli.config.explain_all", fail)
    found, out, err = run(capsys, "config", "list")
    assert (found, out, err.count("\n")) == (code, "", 1)
    assert text in err


def test_a_bug_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise RuntimeError("bug")

    monkeypatch.setattr("skylark.cli.config.explain_all", fail)
    with pytest.raises(RuntimeError):
        cli.main(["config", "list"])


def test_a_role_gets_the_rest_of_the_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = []

    def fake(argv: list[str], *, program: str) -> int:
        seen.append((argv, program, gc.isenabled()))
        return 7

    monkeypatch.setattr("skylark.cli.namesrv.main", fake)
    assert cli.main(["namesrv", "-p", "1"]) == 7
    assert seen == [(["-p", "1"], "skylark namesrv", False)]
    assert gc.isenabled()


@pytest.mark.parametrize(
    "module", ["skylark.cli.mqnamesrv", "skylark.cli.namesrv", "skylark.cli.main"]
)
def test_starting_a_server_imports_nothing_slow(module: str) -> None:
    code = (
        f"import sys, {module}\n"
        "slow = {'typer', 'rich', 'click', 'pyspark', 'difflib', 'tomllib', 'pandas'}\n"
        "print(sorted(slow & set(sys.modules)))"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert found.stdout == "[]\n"


def test_the_package_runs_as_a_module(tmp_path: Path) -> None:
    found = subprocess.run(
        [sys.executable, "-m", "skylark.cli", "version"],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        timeout=60,
    )
    assert found.stdout == f"skylark {skylark.__version__}\n"
