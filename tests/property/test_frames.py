"""Frames over arbitrary values: round trips, any split of the stream, and two paths that agree."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from skylark.errors import LocalProtocolError, RemoteProtocolError
from skylark.protocol import frame
from skylark.protocol.codes import Language
from skylark.protocol.command import Command
from skylark.protocol.frame import FrameDecoder

compiled = pytest.importorskip("skylark.protocol._frame")
LIMITS = (frame.FRAME_BYTES_MAX, frame.HEADER_BYTES_MAX)

int32 = st.integers(-(2**31), 2**31 - 1)
int16 = st.integers(-(2**15), 2**15 - 1)
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
names = st.one_of(st.sampled_from(["topic", "queueId", "a", "b", "consumerGroup"]), text)
bodies = st.binary(max_size=200)
json_commands = st.builds(
    Command,
    code=int32,
    opaque=int32,
    flag=int32,
    fields=st.dictionaries(names, text, max_size=6),
    body=bodies,
    remark=st.none() | text,
    language=st.sampled_from([int(language) for language in Language]),
    version=int32,
    serialization=st.just(0),
)
binary_commands = st.builds(
    Command,
    code=int16,
    opaque=int32,
    flag=int32,
    fields=st.dictionaries(names.filter(bool), text.filter(bool), max_size=6),
    body=bodies,
    remark=st.none() | text.filter(bool),
    language=st.sampled_from([int(language) for language in Language]),
    version=int16,
    serialization=st.just(1),
)
commands = json_commands | binary_commands


def outcome(decode: Any, data: bytes) -> tuple[list[Command], int, str | None]:
    decoded, used, error = decode(data, *LIMITS)
    assert error is None or type(error) is RemoteProtocolError
    return decoded, used, None if error is None else str(error)


def agree(data: bytes) -> None:
    assert outcome(frame.pure_decode_frames, data) == outcome(compiled.decode_frames, data)


@settings(deadline=None)
@given(st.lists(commands, max_size=5))
def test_what_is_written_is_read_back_on_both_paths(sent: list[Command]) -> None:
    data = frame.pure_encode_frames(sent)
    assert compiled.encode_frames(sent) == data
    assert outcome(frame.pure_decode_frames, data) == (sent, len(data), None)
    assert outcome(compiled.decode_frames, data) == (sent, len(data), None)


@settings(deadline=None)
@given(
    st.builds(
        Command,
        code=st.integers(),
        opaque=st.integers(),
        flag=st.integers(),
        fields=st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3),
        remark=st.none() | st.text(max_size=5),
        language=st.integers(-300, 300),
        version=st.integers(),
        serialization=st.integers(0, 3),
    )
)
def test_what_cannot_be_written_is_refused_alike(command: Command) -> None:
    def attempt(encode: Any) -> bytes | str:
        try:
            data: bytes = encode([command])
        except LocalProtocolError as error:
            return str(error)
        return data

    assert attempt(frame.pure_encode_frames) == attempt(compiled.encode_frames)


@settings(deadline=None)
@given(st.data(), st.lists(commands, min_size=1, max_size=5))
def test_any_split_of_the_stream_gives_the_same_commands(
    data: st.DataObject, sent: list[Command]
) -> None:
    stream = frame.encode_frames(sent)
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=12).map(sorted))
    decoder = FrameDecoder()
    received = []
    ends = frame_ends(sent)
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        received += decoder.feed(stream[start:end])
        whole = max(at for at in ends if at <= end)
        assert decoder.held_bytes == end - whole, "it holds the unfinished frame and nothing else"
    assert received == sent
    assert decoder.error is None


def frame_ends(sent: list[Command]) -> list[int]:
    ends = [0]
    for command in sent:
        ends.append(ends[-1] + len(frame.encode_frames([command])))
    return ends


@settings(deadline=None)
@given(st.binary(max_size=300))
@example(b"\0\0\0\x04\0\0\0\0")
@example(b"\0\0\0\x04\1\0\0\0")
@example(b"\x16\x03\x01\x00")
def test_arbitrary_bytes_read_alike(data: bytes) -> None:
    agree(data)


@settings(deadline=None)
@given(st.binary(max_size=120), st.integers(0, 2), st.binary(max_size=8))
def test_an_arbitrary_header_in_a_sound_frame_reads_alike(
    header: bytes, kind: int, body: bytes
) -> None:
    agree(framed(kind, header, body))


def framed(kind: int, header: bytes, body: bytes = b"") -> bytes:
    length = 4 + len(header) + len(body)
    return (
        length.to_bytes(4, "big") + bytes([kind]) + len(header).to_bytes(3, "big") + header + body
    )


@settings(max_examples=300, deadline=None)
@given(st.data(), st.lists(commands, min_size=1, max_size=3))
def test_mutated_frames_read_alike(data: st.DataObject, sent: list[Command]) -> None:
    stream = bytearray(frame.encode_frames(sent))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(stream) - 1))
        kind = data.draw(st.sampled_from(["set", "delete", "insert", "double"]))
        if kind == "set":
            stream[at] = data.draw(st.integers(0, 255))
        elif kind == "delete" and len(stream) > 1:
            del stream[at]
        elif kind == "insert":
            stream[at:at] = data.draw(st.binary(min_size=1, max_size=3))
        else:
            end = data.draw(st.integers(at, min(len(stream), at + 20)))
            stream[at:at] = stream[at:end]
    agree(bytes(stream))


numbers = st.sampled_from(
    [
        "0",
        "-0",
        "1",
        "-1",
        "01",
        "1.0",
        "1e3",
        "1E400",
        "NaN",
        "-Infinity",
        "2147483647",
        "2147483648",
        "-2147483648",
        "-2147483649",
        "9223372036854775807",
        "9223372036854775808",
        "-9223372036854775808",
        "999999999999999999",
        "9999999999999999999",
        "1" * 30,
        "+1",
        "-",
    ]
)
pieces = st.sampled_from(
    [
        '"',
        "\\",
        "a",
        "é",
        "\\n",
        "\\u0041",
        "\\ud83d\\ude00",
        "\\ud83d",
        "\\u00",
        "\\x",
        "\n",
        "\x00",
        "\x7f",
        " ",
        "\\/",
        "\\\\",
    ]
)
strings = st.one_of(
    st.lists(pieces, max_size=4).map(lambda parts: '"' + "".join(parts) + '"'),
    text.map(json.dumps),
    st.sampled_from(['"JAVA"', '"GO"', '"JSON"', '""', '"x', "x"]),
)
scalars = st.one_of(numbers, strings, st.sampled_from(["true", "false", "null", "nul", ""]))
spaces = st.sampled_from(["", "", "", " ", "\n", "\t\r ", "\x0b", "\ufeff"])
keys = st.one_of(
    st.sampled_from(
        [
            '"code"',
            '"opaque"',
            '"flag"',
            '"version"',
            '"extFields"',
            '"language"',
            '"remark"',
            '"serializeTypeCurrentRPC"',
            '"x"',
            '"co\\u0064e"',
            "code",
            '"Code"',
        ]
    ),
    strings,
)


def joined(members: list[tuple[str, str, str, str]], ends: str) -> str:
    inside = ",".join(f"{before}{key}{after}:{value}" for before, key, after, value in members)
    return ends[0] + inside + ends[1:]


def objects(values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.builds(
        joined,
        st.lists(st.tuples(spaces, keys, spaces, values), max_size=5),
        st.sampled_from(["{}", "{}", "{}", "{,}", "{ }", "{", "{}}", "[]"]),
    )


values = st.recursive(
    scalars, lambda inner: objects(inner) | st.lists(inner).map(lambda v: f"[{','.join(v)}]")
)
headers = st.builds(
    lambda before, members, after: before + joined(members, "{}") + after,
    spaces,
    st.lists(
        st.one_of(
            st.tuples(spaces, st.just('"code"'), spaces, numbers),
            st.tuples(spaces, st.just('"extFields"'), spaces, objects(scalars)),
            st.tuples(spaces, keys, spaces, values),
        ),
        max_size=6,
    ),
    spaces,
)


@settings(max_examples=500, deadline=None)
@given(headers)
def test_anything_like_a_json_header_reads_alike(header: str) -> None:
    agree(framed(0, header.encode()))


plain = st.one_of(st.integers(-(2**63), 2**63 - 1), st.booleans(), text)


@settings(max_examples=300, deadline=None)
@given(
    st.dictionaries(text.filter(lambda name: name != "code"), plain, max_size=6),
    st.booleans(),
    st.sampled_from([None, 2]),
)
def test_any_flat_json_object_is_read_as_fields(
    fields: dict[str, Any], ascii_only: bool, indent: int | None
) -> None:
    header = json.dumps({"code": 1, "extFields": fields}, ensure_ascii=ascii_only, indent=indent)
    data = framed(0, header.encode())
    agree(data)
    (command,), _, _ = outcome(compiled.decode_frames, data)
    assert command.fields == {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in fields.items()
    }
