"""The JSON header: what peers of every language write is read, what could hurt us is not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from skylark.errors import RemoteProtocolError
from skylark.protocol import frame
from skylark.protocol.codes import Language
from skylark.protocol.command import Command
from skylark.protocol.header_json import decode_header_json, encode_header_json


def _through_frames(module: str) -> Callable[[bytes], Command]:
    def decode(header: bytes) -> Command:
        data = (len(header) + 4).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header
        if module == "compiled":
            decode_frames = pytest.importorskip("skylark.protocol._frame").decode_frames
        else:
            decode_frames = frame.pure_decode_frames
        commands, _, error = decode_frames(data, 2**24, 2**24)
        if error is not None:
            raise error
        command: Command = commands[0]
        return command

    return decode


@pytest.fixture(params=["alone", "pure", "compiled"])
def decode(request: pytest.FixtureRequest) -> Callable[[bytes], Command]:
    return decode_header_json if request.param == "alone" else _through_frames(request.param)


Decode = Callable[[bytes], Command]


def test_members_are_read_in_any_order_and_unknown_ones_ignored(decode: Decode) -> None:
    header = (
        b'{"version":317,"x":[{"y":null}],"opaque":-5,"language":"GO","flag":3,'
        b'"extFields":{"b":"2","a":"1"},"code":34,"remark":"hm"}'
    )
    assert decode(header) == Command(
        code=34,
        opaque=-5,
        flag=3,
        fields={"b": "2", "a": "1"},
        remark="hm",
        language=Language.GO,
        version=317,
    )


def test_only_the_code_is_needed(decode: Decode) -> None:
    assert decode(b'{"code":0}') == Command(code=0, version=0, language=Language.OTHER)


def test_the_cpp_client_writes_numbers_and_ends_with_a_newline(decode: Decode) -> None:
    header = b'{"code":310,"extFields":{"a":1,"b":-7,"c":"true","d":true,"e":false,"f":""}}\n'
    assert decode(header).fields == {
        "a": "1",
        "b": "-7",
        "c": "true",
        "d": "true",
        "e": "false",
        "f": "",
    }


@pytest.mark.parametrize("value", [b"{}", b"null"])
def test_no_fields_are_an_empty_table(decode: Decode, value: bytes) -> None:
    assert decode(b'{"code":1,"extFields":' + value + b"}").fields == {}


def test_a_null_field_is_an_absent_one(decode: Decode) -> None:
    assert decode(b'{"code":1,"extFields":{"a":null,"b":"x"}}').fields == {"b": "x"}


def test_null_and_absent_remarks_are_the_same_and_an_empty_one_is_not(decode: Decode) -> None:
    assert decode(b'{"code":1,"remark":null}').remark is None
    assert decode(b'{"code":1}').remark is None
    assert decode(b'{"code":1,"remark":""}').remark == ""


@pytest.mark.parametrize(
    ("text", "number"),
    [
        (b"9223372036854775807", "9223372036854775807"),
        (b"-9223372036854775808", "-9223372036854775808"),
        (b"1.5", "1.5"),
        (b"1e400", "1e400"),  # Text, so it never becomes an infinity.
        (b"-0", "0"),
        (b"999999999999999999", "999999999999999999"),
    ],
)
def test_a_number_among_the_fields_keeps_its_digits(
    decode: Decode, text: bytes, number: str
) -> None:
    assert decode(b'{"code":1,"extFields":{"n":' + text + b"}}").fields == {"n": number}


@pytest.mark.parametrize(
    ("name", "language"),
    [
        (b'"JAVA"', Language.JAVA),
        (b'"PYTHON"', Language.PYTHON),
        (b'"NODE_JS"', Language.NODE_JS),
        (b'"COBOL"', Language.OTHER),
        (b'"J\\u0041VA"', Language.JAVA),
        (b'""', Language.OTHER),
        (b"9", Language.GO),
        (b"99", Language.OTHER),
        (b"null", Language.OTHER),
        (b"[]", Language.OTHER),
    ],
)
def test_an_unknown_language_is_other(decode: Decode, name: bytes, language: int) -> None:
    assert decode(b'{"code":1,"language":' + name + b"}").language == language


@pytest.mark.parametrize(
    ("escaped", "text"),
    [
        (rb"\n\r\t\b\f\/\\\"", '\n\r\t\b\f/\\"'),
        (rb"\u0041\u00e9\u4e2d", "Aé中"),
        (rb"\ud83d\ude00", "😀"),
        ("é中😀\x7f\u2028".encode(), "é中😀\x7f\u2028"),
        (rb"\u0000", "\0"),
        (rb"\uFFFF\uffff", "\uffff\uffff"),
    ],
)
def test_escapes_are_read_everywhere(decode: Decode, escaped: bytes, text: str) -> None:
    header = b'{"code":1,"remark":"%s","extFields":{"k%s":"v%s"}}' % (escaped, escaped, escaped)
    command = decode(header)
    assert command.remark == text
    assert command.fields == {"k" + text: "v" + text}


REFUSED = [
    b"",
    b" ",
    b"null",
    b"[]",
    b"1",
    b'"code"',
    b"{}",
    b'{"code":1',
    b'{"code":1}x',
    b'{"code":1}{"code":1}',
    b'{"code":1,}',
    b'{"code" 1}',
    b"{'code':1}",
    b"{code:1}",
    b'{"code":01}',
    b'{"code":+1}',
    b'{"code":--1}',
    b'{"code":-}',
    b'{"code":"105"}',
    b'{"code":105.0}',
    b'{"code":1e2}',
    b'{"code":[105]}',
    b'{"code":null}',
    b'{"code":true}',
    b'{"code":NaN}',
    b'{"code":Infinity}',
    b'{"code":-Infinity}',
    b'{"code":2147483648}',
    b'{"code":-2147483649}',
    b'{"code":9223372036854775808}',
    b'{"code":1,"opaque":"7"}',
    b'{"code":1,"opaque":null}',
    b'{"code":1,"flag":1.5}',
    b'{"code":1,"version":99999999999}',
    b'{"code":1,"remark":5}',
    b'{"code":1,"remark":["x"]}',
    b'{"code":1,"extFields":[]}',
    b'{"code":1,"extFields":"x"}',
    b'{"code":1,"extFields":{"a":{}}}',
    b'{"code":1,"extFields":{"a":[1]}}',
    b'{"code":1,"extFields":{"a":NaN}}',
    b'{"code":1,"extFields":{"a":18446744073709551616}}',
    b'{"code":1,"extFields":{"a":"1","a":"2"}}',
    b'{"code":1,"extFields":{"a":"1","\\u0061":"2"}}',
    b'{"code":1,"extFields":{"a":null,"a":"2"}}',
    b'{"code":1,"extFields":{1:"a"}}',
    b'{"code":1,"code":1}',
    b'{"code":1,"co\\u0064e":1}',
    b'{"code":1,"x":1,"x":2}',
    b'{"code":1,"remark":null,"remark":"x"}',
    b'{"code":1,"remark":"\\ud800"}',
    b'{"code":1,"remark":"\\ude00\\ud83d"}',
    b'{"code":1,"extFields":{"\\udc00":"x"}}',
    b'{"code":1,"extFields":{"a":"\\ud800x"}}',
    b'{"code":1,"x":"\\ud800"}',
    b'{"code":1,"\\ud800":"x"}',
    b'{"code":1,"remark":"\xed\xa0\x80"}',
    b'{"code":1,"remark":"\xff"}',
    b'{"code":1,"language":"\xff"}',
    b'{"code":1,"serializeTypeCurrentRPC":"\xc0\x80"}',
    b'{"code":1,"extFields":{"\xff":"x"}}',
    b'{"code":1,"extFields":{"a":"\xf8"}}',
    b'{"code":1,"remark":"a\nb"}',
    b'{"code":1,"remark":"a\0b"}',
    b'{"code":1,"remark":"\\x41"}',
    b'{"code":1,"remark":"\\u12"}',
    b'{"code":1,"remark":"\\u12g4"}',
    b'{"code":1,"remark":"\\',
    b'{"code":1,"remark":"\\u',
    b'{"code":1,"remark":"',
    b'\xef\xbb\xbf{"code":1}',
    b"\0" * 20,
    b'{"code":1}\0',
    b'{"code":1,"x":[[[[1]]]]}',
    b'{"code":1,"x":' + b"[" * 30_000,
    b'{"code":1,"x":' + b"[" * 30_000 + b"]" * 30_000 + b"}",
    b'{"a":' * 10_000 + b"1" + b"}" * 10_000,
    b"[" * 1_000_000,
    b'{"code":' + b"9" * 1_000_000 + b"}",
    b'{"code":1,"x":' + b"9" * 1_000_000 + b"}",
]


@pytest.mark.parametrize("header", REFUSED, ids=lambda header: repr(header[:40]))
def test_a_header_that_could_hurt_the_reader_is_refused(decode: Decode, header: bytes) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        decode(header)
    assert len(str(caught.value)) < 300, "the log line must not be the peer's to fill"


@pytest.mark.parametrize("header", REFUSED, ids=lambda header: repr(header[:40]))
def test_both_paths_refuse_with_the_same_words(header: bytes) -> None:
    with pytest.raises(RemoteProtocolError) as pure:
        _through_frames("pure")(header)
    with pytest.raises(RemoteProtocolError) as compiled:
        _through_frames("compiled")(header)
    assert str(pure.value) == str(compiled.value)


def test_nesting_up_to_the_limit_is_read(decode: Decode) -> None:
    assert decode(b'{"code":1,"x":[[[1]]]}').code == 1


def test_members_are_written_in_alphabetical_order_without_absent_ones() -> None:
    command = Command(code=1, opaque=2, remark="r", fields={"z": "1", "a": "2"})
    assert encode_header_json(command) == (
        b'{"code":1,"extFields":{"z":"1","a":"2"},"flag":0,"language":"PYTHON","opaque":2,'
        b'"remark":"r","serializeTypeCurrentRPC":"JSON","version":409}'
    )
    assert encode_header_json(Command(code=1)) == (
        b'{"code":1,"flag":0,"language":"PYTHON","opaque":0,'
        b'"serializeTypeCurrentRPC":"JSON","version":409}'
    )


def test_text_is_written_raw_except_what_json_must_escape() -> None:
    text = 'é中😀\x00\x1f\x7f\n"\\/'
    data = encode_header_json(Command(code=1, remark=text))
    assert '"remark":"é中😀\\u0000\\u001f\x7f\\n\\"\\\\/"'.encode() in data
    assert decode_header_json(data).remark == text
