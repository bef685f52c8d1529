"""Tables, plain text and JSON, and what hostile names cannot do to a terminal."""

import io
import json

import pytest

from skylark.cli import render

COLUMNS = {"topic": "topic", "queues": "queues"}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(rows: list[dict[str, object]], out: io.StringIO, **options: bool) -> str:
    render.show_table(rows, COLUMNS, out=out, **options)
    return out.getvalue()


def test_a_pipe_gets_aligned_text_without_trailing_blanks() -> None:
    rows = [{"topic": "Order", "queues": 16}, {"topic": "T", "queues": None}]
    assert shown(rows, io.StringIO()) == "TOPIC  QUEUES\nOrder  16\nT      -\n"


def test_wide_characters_take_two_columns() -> None:
    rows = [{"topic": "订单", "queues": 1}, {"topic": "abcd", "queues": 2}]
    lines = shown(rows, io.StringIO()).splitlines()
    assert lines[1] == "订单   1"
    assert lines[2] == "abcd   2"


def test_json_has_every_key_and_its_type() -> None:
    rows = [{"topic": "a\x1b", "queues": 1, "more": True}]
    out = shown(rows, io.StringIO(), as_json=True)
    assert json.loads(out) == rows
    assert out.isascii()
    assert "\x1b" not in out


def test_no_rows_is_a_title_line_or_an_empty_list() -> None:
    assert shown([], io.StringIO()) == "TOPIC  QUEUES\n"
    assert json.loads(shown([], io.StringIO(), as_json=True)) == []


def test_a_terminal_gets_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("NO_COLOR", raising=False)
    out = shown([{"topic": "[red]Order", "queues": 16}], Terminal())
    assert "[red]Order" in out, "brackets in a name are not markup"
    assert "─" in out


def test_no_color_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("NO_COLOR", "1")
    out = shown([{"topic": "Order", "queues": 16}], Terminal())
    assert "\x1b[3" not in out


def test_a_dumb_terminal_gets_plain_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    assert shown([{"topic": "a", "queues": 1}], Terminal()) == "TOPIC  QUEUES\na      1\n"


@pytest.mark.parametrize("term", ["xterm", "dumb"])
def test_a_hostile_name_cannot_steer_the_terminal(
    term: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", term)
    monkeypatch.setenv("NO_COLOR", "1")
    out = shown([{"topic": "\x1b]0;owned\x07\n", "queues": 1}], Terminal())
    assert "\x1b]" not in out
    assert "\x07" not in out


def test_a_record_is_a_line_per_field() -> None:
    out = io.StringIO()
    record = {"key": "listenPort", "hot": False, "env": ["A", "B"]}
    render.show_record(record, {"key": "key", "hot": "hot", "env": "environment"}, out=out)
    assert out.getvalue() == "key          listenPort\nhot          no\nenvironment  A, B\n"
