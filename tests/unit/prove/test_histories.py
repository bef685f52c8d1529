"""Histories as files and in memory, and bodies that tell when they were tampered with."""

from __future__ import annotations

import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from legal_histories import LegalRun

from skylark.errors import ConfigError
from skylark.prove.history import INVOKE, MANGLED, OK, Event, History, Recorder, parse_event
from skylark.prove.payload import BODY_BYTES_MIN, body_of, id_of, message_id
from skylark.testing.stores import HandClock

EVENT = Event(3, OK, "send", "Proof", 1, 42, 3 << 32 | 7, 1_000, 1_700_000_000_000, "broker-a")


def lines_of(history: History) -> list[str]:
    out = io.StringIO()
    history.write(out)
    return out.getvalue().splitlines(keepends=True)


def test_a_line_has_exactly_the_keys_of_the_format() -> None:
    assert json.loads(EVENT.line()) == {
        "p": 3, "type": "ok", "f": "send", "topic": "Proof", "q": 1, "off": 42,
        "id": 3 << 32 | 7, "t_mono": 1_000, "t_wall": 1_700_000_000_000, "node": "broker-a",
    }  # fmt: skip


def test_what_is_written_is_read_again() -> None:
    history = LegalRun(4).history
    lines = lines_of(history)
    again = History.read(lines)
    assert list(again) == list(history)
    assert [again[at] for at in range(len(again))] == list(history)


def test_ten_million_events_fit_into_half_a_gibibyte() -> None:
    history = History([EVENT] * 1_000)
    assert history.bytes_used * 10_000 < 600 << 20


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ("{", "not JSON"),
        ("[" * 4_000, "not JSON"),
        ("[]", "not an object with the keys"),
        ('{"p": 1}', "not an object with the keys"),
        (EVENT.line().replace("42", '"42"'), "off is not a whole number of 64 bits"),
        (EVENT.line().replace("42", "true"), "off is not a whole number of 64 bits"),
        (EVENT.line().replace("42", "9223372036854775808"), "off is not a whole number of 64 bits"),
        (EVENT.line().replace('"q":1', '"q":4294967296'), "q is not a whole number of 32 bits"),
        (EVENT.line().replace('"ok"', '"maybe"'), "type is none of invoke, ok, fail, info"),
        (EVENT.line().replace('"send"', '"sent"'), "f is none of send"),
        (EVENT.line().replace('"Proof"', "7"), "topic is not a text"),
        ("x" * 5_000, "longer than 4096 characters"),
    ],
)
def test_a_damaged_line_is_refused_by_its_number(damage: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        History.read([EVENT.line() + "\n", damage + "\n"], "h.jsonl")
    assert f"h.jsonl:2: {said}" in str(caught.value)


def test_a_history_that_was_cut_short_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"h\.jsonl:2: the line is cut short"):
        History.read([EVENT.line() + "\n", EVENT.line()], "h.jsonl")


@given(st.text(max_size=200))
def test_no_line_is_read_with_another_error(line: str) -> None:
    try:
        parse_event(line + "\n")
    except ValueError:
        return


def test_a_recorder_writes_what_happens_when_it_happens() -> None:
    clock, out = HandClock(), io.StringIO()
    recorder = Recorder(clock, out)
    recorder.note("send", INVOKE, p=1, topic="Proof", q=0, id=message_id(1, 1))
    recorder.rule("late_ms", 7)
    assert [event.f for event in recorder.history] == ["send", "rule"]
    assert list(History.read(out.getvalue().splitlines(keepends=True))) == list(recorder.history)


@given(st.integers(0, 2**31 - 1), st.integers(0, 2**32 - 1), st.integers(0, 400))
def test_a_body_tells_whose_it_is(producer: int, sequence: int, length: int) -> None:
    id = message_id(producer, sequence)
    body = body_of(id, length)
    assert len(body) == max(BODY_BYTES_MIN, length)
    assert id_of(body) == id


@given(st.integers(0, 199), st.integers(1, 255))
def test_a_body_with_any_other_byte_is_mangled(at: int, change: int) -> None:
    body = bytearray(body_of(message_id(1, 2), 200))
    body[at] ^= change
    assert id_of(bytes(body)) == MANGLED


def test_a_body_put_together_from_two_is_mangled() -> None:
    one, other = body_of(message_id(1, 1), 100), body_of(message_id(2, 1), 100)
    for cut in range(1, 100):
        mixed = one[:cut] + other[cut:]
        assert mixed in (one, other) or id_of(mixed) == MANGLED
    assert id_of(one[:-1]) == MANGLED
    assert id_of(b"") == MANGLED
