"""Times, permissions and consent, as they are typed."""

from __future__ import annotations

import datetime

import pytest

from skylark.admin import NEWEST
from skylark.cli import asking, exits
from skylark.cli import main as cli
from skylark.errors import ConfigError

NOW_MS = 1_794_726_000_000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("first", 0),
        ("last", NEWEST),
        ("now", NEWEST),
        ("NOW", NEWEST),
        ("30m", NOW_MS - 1_800_000),
        ("-2h", NOW_MS - 7_200_000),
        ("1d", NOW_MS - 86_400_000),
        ("90s", NOW_MS - 90_000),
        ("5ms", NOW_MS - 5),
        ("999999999d", 0),
        ("1794726000000", 1_794_726_000_000),
        ("0", 0),
        ("2026-11-15T08:00+00:00", 1_794_729_600_000),
        ("2026-11-15 08:00:00.250+00:00", 1_794_729_600_250),
    ],
)
def test_a_time_is_understood_in_many_forms(text: str, expected: int) -> None:
    assert asking.moment_ms(text, NOW_MS) == expected


def test_a_time_without_a_zone_is_local() -> None:
    local = datetime.datetime(2026, 11, 15, 8, 0, 5).astimezone()
    expected = int(local.timestamp() * 1000)
    assert asking.moment_ms("20261115080005", NOW_MS) == expected
    assert asking.moment_ms("2026-11-15T08:00:05", NOW_MS) == expected
    text = asking.time_text(expected)
    assert text is not None
    assert asking.moment_ms(text, NOW_MS) == expected


@pytest.mark.parametrize(
    "text", ["", "yesterday", "5 parsecs", "20261399999999", "9" * 40, "-1", "٣m"]
)
def test_other_words_are_no_time(text: str) -> None:
    with pytest.raises(ConfigError, match="is not understood; write first, last"):
        asking.moment_ms(text, NOW_MS)


@pytest.mark.parametrize("time_ms", [None, -1])
def test_no_time_has_no_text(time_ms: int | None) -> None:
    assert asking.time_text(time_ms) is None


@pytest.mark.parametrize(
    "arguments",
    [
        ("topic", "delete", "T"),
        ("group", "delete", "g"),
        ("group", "rewind", "g", "T", "--to", "first"),
    ],
)
def test_a_script_must_say_that_it_means_what_cannot_be_undone(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(list(arguments)) == exits.WRONG_USE
    assert "add --yes to say so" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["topic", "create", "T", "--perm", "RWZ"], "write RW, R, W, or 6, 4, 2"),
        (["topic", "create", "T", "--perm", "9"], "write RW, R, W, or 6, 4, 2"),
        (["group", "rewind", "g", "T", "--to", "soon"], "is not understood"),
        (["message", "find", "T", "k", "--since", "soon"], "is not understood"),
        (["message", "find", "T", "k", "--count", "0"], "'--count'"),
        (["topic", "create"], "Missing argument"),
    ],
)
def test_wrong_words_are_one_line_and_exit_code_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(arguments) == exits.WRONG_USE
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert err.count("\n") == 1


def test_a_name_server_that_is_not_there_is_exit_code_3(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", "127.0.0.1:1")
    assert cli.main(["topic", "list"]) == exits.NOT_REACHABLE
    assert "127.0.0.1:1" in capsys.readouterr().err
