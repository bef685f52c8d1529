"""The fast path reads and answers exactly as its specification and the processors do."""

from __future__ import annotations

from array import array
from typing import Any

import pytest
from broker_world import send_fields
from hypothesis import given, settings
from hypothesis import strategies as st

from skylark.broker import fast_path
from skylark.broker.fast_path import SendContext
from skylark.protocol.batch import BatchEntry, encode_batch
from skylark.protocol.command import Command
from skylark.protocol.frame import encode_frames
from skylark.protocol.properties import parse_properties
from skylark.store import PutMessage, PutResult, PutStatus

CONTEXT = SendContext({"T": 4}, b"CLUSTER\x01c", b"born-hos", b"store-ho", 100)


@pytest.fixture(params=["pure", "compiled"])
def twin(request: pytest.FixtureRequest) -> dict[str, Any]:
    found = fast_path.PURE if request.param == "pure" else fast_path.COMPILED
    if not found:
        pytest.skip("not compiled")
    return found


def _command(**changes: Any) -> Command:
    fields = send_fields("T", queue_id=1, properties={"TAGS": "A", "WAIT": "true", "KEYS": "a b"})
    body = changes.pop("body", b"body")
    for key, value in changes.items():
        if value is None:
            fields.pop(key, None)
        else:
            fields[key] = value
    return Command(310, 7, 0, fields, body)


def _read(twin: dict[str, Any], command: Command) -> PutMessage | None:
    messages: list[PutMessage] = []
    queue_ids: list[int] = []
    count = twin["plain_sends"]([command], 0, CONTEXT, messages, queue_ids)
    assert count == len(messages) == len(queue_ids)
    return messages[0] if messages else None


def test_a_plain_send_becomes_a_message(twin: dict[str, Any]) -> None:
    message = _read(twin, _command(j="3", f="1", h="9"))
    assert message == PutMessage(
        "T", 1, b"body", b"TAGS\x01A\x02KEYS\x01a b\x02CLUSTER\x01c", 1_794_726_790_296,
        b"born-hos", b"store-ho", 9, 1, 3,
    )  # fmt: skip
    assert isinstance(message, PutMessage)


def test_a_send_without_properties_gets_only_the_cluster(twin: dict[str, Any]) -> None:
    for text in (None, "", "WAIT\x01true", "WAIT\x01true\x02"):
        message = _read(twin, _command(i=text))
        assert message is not None
        assert message.properties == b"CLUSTER\x01c"


ODD = {
    "batch": {"m": "true"},
    "batch in capitals": {"m": "TRUE"},
    "unit mode": {"k": "true"},
    "unknown topic": {"b": "U"},
    "no topic": {"b": None},
    "no group": {"a": None},
    "no template": {"c": None},
    "queue out of range": {"e": "4"},
    "negative queue": {"e": "-1"},
    "no queue": {"e": None},
    "number with a space": {"e": " 1"},
    "number with a plus": {"e": "+1"},
    "number of another script": {"e": "١"},
    "number too long": {"g": "1" * 19},
    "flag beyond 32 bits": {"h": "2147483648"},
    "retries that are no number": {"j": "x"},
    "limit that is no number": {"l": ""},
    "half message": {"f": "4"},
    "delay": {"i": "DELAY\x013"},
    "transaction": {"i": "TRAN_MSG\x01true"},
    "timer": {"i": "TIMER_DELIVER_MS\x0199"},
    "own cluster": {"i": "CLUSTER\x01x"},
    "no separator": {"i": "nonsense"},
    "no name": {"i": "\x01value"},
    "no value": {"i": "name\x01"},
    "empty piece": {"i": "a\x01b\x02\x02c\x01d"},
    "too many keys": {"i": "KEYS\x01" + " ".join("k" * 65)},
    "too long": {"i": "k\x01" + "v" * 32_760},
    "lone surrogate": {"i": "k\x01\ud800"},
    "large body": {"body": bytes(101)},
}


@pytest.mark.parametrize("case", ODD)
def test_everything_odd_is_left_to_the_processor(twin: dict[str, Any], case: str) -> None:
    assert _read(twin, _command(**ODD[case])) is None


def test_reading_stops_before_the_first_odd_send(twin: dict[str, Any]) -> None:
    commands = [_command(), _command(), _command(m="true"), _command()]
    messages: list[PutMessage] = []
    queue_ids: list[int] = []
    assert twin["plain_sends"](commands, 0, CONTEXT, messages, queue_ids) == 2
    assert twin["plain_sends"](commands, 3, CONTEXT, messages, queue_ids) == 4
    assert len(messages) == 3
    other = Command(10, 0, 0, commands[0].fields)
    assert twin["plain_sends"]([other], 0, CONTEXT, messages, queue_ids) == 0


_names = st.sampled_from(["TAGS", "KEYS", "WAIT", "DELAY", "k", "CLUSTER", "標", "", "TRAN_MSG"])
_values = st.text(alphabet="ab \x01\x02é標", max_size=6)
_texts = st.lists(st.tuples(_names, _values, st.sampled_from(["\x01", ""])), max_size=5).map(
    lambda pieces: "\x02".join(f"{name}{mark}{value}" for name, value, mark in pieces)
)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(text=_texts, queue=st.sampled_from(["0", "3", "4", "-0", "00", "1e1"]), tail=st.booleans())
def test_both_twins_read_any_properties_alike(text: str, queue: str, tail: bool) -> None:
    if not fast_path.COMPILED:
        pytest.skip("not compiled")
    command = _command(i=text + ("\x02" if tail else ""), e=queue)
    pure = _read(fast_path.PURE, command)
    assert pure == _read(fast_path.COMPILED, command)
    if pure is not None:
        meant = parse_properties(text)
        meant.pop("WAIT", None)
        assert parse_properties(pure.properties) == {**meant, "CLUSTER": "c"}


# Batches.

PLAIN_PROPERTIES = {
    "none": b"",
    "usual ones": b"TAGS\x01A\x02KEYS\x01a b\x02UNIQ_KEY\x010A\x02WAIT\x01true",
    "a separator at the end": b"TAGS\x01A\x02",
    "no value": b"name\x01",
    "a separator in a value": b"a\x01b\x01c",
    "63 spaces": b"KEYS\x01" + b" " * 63,
    "no text": b"\xff\xfe\x01\xff",
    "nearly a delay": b"DELAY\x02_TIMER\x01TIME_R TRAN_MSGS"[6:] + b"\x02DELAYS\x011",
    "the most that fits": b"k\x01" + b"v" * 32_765,
}
ODD_PROPERTIES = {
    "no separator": b"nonsense",
    "no name": b"\x01value",
    "an empty piece": b"a\x01b\x02\x02c\x01d",
    "only separators": b"\x02",
    "64 spaces": b"KEYS\x01" + b" " * 64,
    "a delay": b"a\x01b\x02DELAY\x013",
    "a name that ends like a delay": b"MYDELAY\x013",
    "a value that looks like a delay": b"a\x01b\x01DELAY\x013",
    "a transaction": b"TRAN_MSG\x01true",
    "a timer": b"TIMER_DELIVER_MS\x019",
    "a value that looks like a timer": b"a\x01_TIMER_",
}


@pytest.mark.parametrize("case", PLAIN_PROPERTIES)
def test_plain_entries_are_found_plain(twin: dict[str, Any], case: str) -> None:
    entries = [BatchEntry(b"one", b"TAGS\x01A"), BatchEntry(b"two", PLAIN_PROPERTIES[case])]
    assert twin["plain_entries"](encode_batch(entries)) is True


@pytest.mark.parametrize("case", ODD_PROPERTIES)
def test_one_odd_entry_makes_a_batch_odd(twin: dict[str, Any], case: str) -> None:
    entries = [BatchEntry(b"one", b"TAGS\x01A"), BatchEntry(b"two", ODD_PROPERTIES[case])]
    assert twin["plain_entries"](encode_batch(entries)) is False
    assert twin["plain_entries"](memoryview(encode_batch(entries[::-1]))) is False


def test_a_batch_whose_lengths_lie_is_odd(twin: dict[str, Any]) -> None:
    whole = encode_batch([BatchEntry(b"one", b"TAGS\x01A"), BatchEntry(b"two")])
    assert twin["plain_entries"](whole) is True
    for size in range(len(whole)):
        is_plain = size == len(encode_batch([BatchEntry(b"one", b"TAGS\x01A")]))
        assert twin["plain_entries"](whole[:size]) is is_plain
    assert twin["plain_entries"](whole + b"\0") is False
    assert twin["plain_entries"](encode_batch([BatchEntry(b"")] * 65_536)) is True
    assert twin["plain_entries"](encode_batch([BatchEntry(b"")] * 65_537)) is False


_pieces = st.sampled_from(
    [b"DELAY", b"TRAN_MSG", b"TIMER_", b"TIMER", b"_", b"\x01", b"\x02", b" ", b"a", b"\xff"]
)


@settings(max_examples=500, deadline=None, derandomize=True)
@given(
    texts=st.lists(st.lists(_pieces, max_size=8).map(b"".join), min_size=1, max_size=3),
    damage=st.none() | st.tuples(st.integers(0, 100), st.integers(0, 255)),
)
def test_both_twins_find_the_same_batches_plain(
    texts: list[bytes], damage: tuple[int, int] | None
) -> None:
    if not fast_path.COMPILED:
        pytest.skip("not compiled")
    data = bytearray(encode_batch([BatchEntry(b"body", text) for text in texts]))
    if damage is not None:
        data[damage[0] % len(data)] = damage[1]
    pure = fast_path.PURE["plain_entries"](data)
    assert pure == fast_path.COMPILED["plain_entries"](data)


def test_the_ids_of_a_batch_are_in_its_order(twin: dict[str, Any]) -> None:
    ids = twin["stored_ids"]("7F00000100002A9F", array("q", [0, 171, 2**63 - 1]))
    assert ids == (
        "7F00000100002A9F0000000000000000,7F00000100002A9F00000000000000AB,"
        "7F00000100002A9F7FFFFFFFFFFFFFFF"
    )
    assert twin["stored_ids"]("p", array("q", [16])) == "p0000000000000010"


# Answers.

TRACE = {"MSG_REGION": 'Re"gion\n標', "TRACE_ON": "true"}


def _results(*offsets: int) -> list[PutResult]:
    return [PutResult(PutStatus.PUT_OK, offset, offset // 7, 10, 1) for offset in offsets]


def test_answers_are_the_frames_that_the_slow_way_would_send(twin: dict[str, Any]) -> None:
    commands = [Command(310, opaque, 0, {}) for opaque in (0, -5, 2**31 - 1)]
    commands.append(Command(310, 9, 2, {}))  # Oneway: no answer.
    queue_ids = [0, 3, 2**31 - 1, 1]
    results = _results(0, 2**40, 2**62, 5)
    expected = encode_frames(
        [
            command.reply(
                0,
                None,
                {
                    "msgId": f"ABC{result.physical_offset:016X}",
                    "queueId": str(queue_id),
                    "queueOffset": str(result.queue_offset),
                    **TRACE,
                },
            )
            for command, queue_id, result in list(zip(commands, queue_ids, results, strict=True))[
                :3
            ]
        ]
    )
    assert twin["stored_answers"](commands, 0, queue_ids, results, "ABC", TRACE) == expected
    tail = twin["stored_answers"](commands, 3, queue_ids[3:], results[3:], "ABC", TRACE)
    assert tail == b""


def test_a_failed_put_or_a_binary_header_is_answered_elsewhere(twin: dict[str, Any]) -> None:
    command = Command(310, 1, 0, {})
    bad = [PutResult(PutStatus.MESSAGE_ILLEGAL)]
    assert twin["stored_answers"]([command], 0, [0], bad, "A", TRACE) is None
    command.serialization = 1
    assert twin["stored_answers"]([command], 0, [0], _results(0), "A", TRACE) is None


PULL = {
    "consumerGroup": "g", "topic": "T", "queueId": "1", "queueOffset": "-3", "maxMsgNums": "32",
    "sysFlag": "3", "commitOffset": "9", "suspendTimeoutMillis": "15000", "subVersion": "5",
}  # fmt: skip


def test_a_pull_is_read(twin: dict[str, Any]) -> None:
    plain = twin["read_pull"](PULL)
    assert plain == ("g", "T", 1, -3, 32, 3, 9, 15_000, None, 5, None)
    more = twin["read_pull"]({**PULL, "subscription": "A", "expressionType": "TAG", "x": "y"})
    assert (more.subscription, more.expression_type, more.count_max) == ("A", "TAG", 32)


@pytest.mark.parametrize("key", PULL)
def test_a_pull_with_a_bad_or_missing_field_is_left_to_the_typed_header(
    twin: dict[str, Any], key: str
) -> None:
    without = {name: value for name, value in PULL.items() if name != key}
    assert twin["read_pull"](without) is None
    if key not in ("consumerGroup", "topic"):
        for text in ("", "x", "1 ", "9" * 19):
            assert twin["read_pull"]({**PULL, key: text}) is None


def test_the_answer_to_a_pull_is_the_frame_that_the_slow_way_would_send(
    twin: dict[str, Any],
) -> None:
    command = Command(11, 77, 0, {})
    chunks = [b"one", memoryview(b"two"), b""]
    fields = {
        "suggestWhichBrokerId": "1", "nextBeginOffset": "5", "minOffset": "-1",
        "maxOffset": str(2**62),
    }  # fmt: skip
    for code, remark, parts in ((0, "FOUND", chunks), (19, "OFFSET_OVERFLOW_ONE", [])):
        expected = encode_frames([command.reply(code, remark, fields, b"".join(parts))])
        made = twin["pull_answer"](command, code, remark, "1", (5, -1, 2**62), parts)
        assert made == expected
    command.serialization = 1
    assert twin["pull_answer"](command, 0, "FOUND", "0", (0, 0, 0), []) is None
