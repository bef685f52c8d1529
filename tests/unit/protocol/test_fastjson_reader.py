"""Reading fastjson's dialect: every oddity that Java, Go and C++ send, and what is refused."""

import time
from typing import Any

import pytest

from skylark.errors import InvalidBody, InvalidJson
from skylark.protocol import fastjson
from skylark.protocol.fastjson import DEPTH_MAX, ObjectKey, loads


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a":1}\n', {"a": 1}),
        ('{0:"a",1:"b"}', {"0": "a", "1": "b"}),
        ('{"0":"a","1":"b"}', {"0": "a", "1": "b"}),
        ("{-5:1}", {"-5": 1}),
        ("{a:1,_b$9:2}", {"a": 1, "_b$9": 2}),
        ("{'a':'it\\'s'}", {"a": "it's"}),
        ('[1,-2,3.5,1e3,true,null,"x",[],{}]', [1, -2, 3.5, 1000.0, True, None, "x", [], {}]),
        (' { "a" : [ 1 , 2 ] } \r\n', {"a": [1, 2]}),
        (" {\ta :\f[ 1 , 2 ] }", {"a": [1, 2]}),
        ('"raw\tcontrol\x01"', "raw\tcontrol\x01"),
        ('"标签"', "标签"),
        ('"\\u6807\\u7b7e \\ud83d\\ude00"', "标签 😀"),
        (r'"\"\\\/\b\f\n\r\t"', '"\\/\b\f\n\r\t'),
        (r"'\"\\\/\b\f\n\r\t\v\x41\0'", '"\\/\b\f\n\r\t\vA\0'),
        ("9223372036854775807", 2**63 - 1),
        ("-9223372036854775808", -(2**63)),
        ('{"a":1,"a":2}', {"a": 2}),
        ("{a:1,a:2}", {"a": 2}),
    ],
)  # fmt: skip
def test_a_spelling_has_its_meaning(text: str, value: Any) -> None:
    assert loads(text.encode()) == value
    assert loads(memoryview(text.encode())) == value
    assert loads(text) == value


def test_an_object_as_a_key_comes_back_as_its_text() -> None:
    table = loads(b'{{"brokerName":"b","queueId":0,"topic":"T"}:5,{topic:"U"} : {1:2}}')
    assert table == {'{"brokerName":"b","queueId":0,"topic":"T"}': 5, '{topic:"U"}': {"1": 2}}
    assert isinstance(table, dict)
    assert all(isinstance(key, ObjectKey) for key in table)
    assert loads(next(iter(table))) == {"brokerName": "b", "queueId": 0, "topic": "T"}


def test_a_key_means_the_same_as_an_object_and_as_escaped_text() -> None:
    as_object = loads(b'{{"queueId":0,"topic":"T"}:5}')
    as_text = loads(rb'{"{\"queueId\":0,\"topic\":\"T\"}":5}')
    assert as_object == as_text


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "end of text"),
        ("  ", "end of text"),
        ("{", "end of text"),
        ("[1,", "end of text"),
        ("[1 2]", "unexpected '2' in an array"),
        ("[1,]", "unexpected ']' where a value"),
        ("{,}", "unexpected ',' where a key"),
        ('{"a":1,}', "unexpected '}' where a key"),
        ('{"a" 1}', "unexpected '1' after a key"),
        ('{"a":1 "b":2}', "unexpected '\"' in an object"),
        ('{"a"}', "unexpected '}' after a key"),
        ("{[1]:2}", "unexpected '[' where a key"),
        ("{1.5:2}", "unexpected '.' after a key"),
        ("1 2", "unexpected '2' after the value"),
        ("[1]]", "unexpected ']' after the value"),
        ("01", "unexpected '1' after the value"),
        ("+1", "unexpected '+'"),
        (".5", "unexpected '.'"),
        ("1.", "unexpected '.' after"),
        ("-", "unexpected '-'"),
        ("tru", "unexpected 't'"),
        ("NaN", "unexpected 'N'"),
        ("Infinity", "unexpected 'I'"),
        ("-Infinity", "unexpected '-'"),
        ("[NaN]", "unexpected 'N'"),
        ("1e400", "number that does not fit a double"),
        ("-1e400", "number that does not fit a double"),
        ("9223372036854775808", "integer that does not fit 64 bits"),
        ("-9223372036854775809", "integer that does not fit 64 bits"),
        ('"abc', "text without an end"),
        ("'abc\"", "text without an end"),
        ('"a\\"', "text without an end"),
        ('"\\', "text without an end"),
        ('"\\q"', "unknown escape"),
        ('"\\u12g4"', "unknown escape"),
        ('"\\u12', "text without an end"),
        ("'\\x4'", "unknown escape"),
        ('"\\ud800"', "half of a surrogate pair"),
        ('"\\udc00"', "half of a surrogate pair"),
        ('"\\ud800\\u0041"', "half of a surrogate pair"),
        ('{"\\ud800x":1}', "half of a surrogate pair"),
        ("\0", "unexpected '\\x00'"),
        ("1\0", "unexpected '\\x00'"),
        ("\ufeff{}", "unexpected"),
        ("/* note */ 1", "unexpected '/'"),
    ],
)
def test_what_is_not_json_is_refused_with_its_place(text: str, problem: str) -> None:
    with pytest.raises(InvalidJson) as caught:
        loads(text.encode())
    assert caught.value.problem.startswith(problem)
    assert 0 <= caught.value.position <= len(text)
    assert isinstance(caught.value, InvalidBody)


def test_bytes_that_are_not_utf8_are_refused() -> None:
    for data in (b'"\xff"', b'"\xed\xa0\x80"', b"\x80", b'{"a":"\xc3'):
        with pytest.raises(InvalidJson, match="not UTF-8"):
            loads(data)
    with pytest.raises(InvalidJson, match="half of a surrogate pair"):
        loads('"\ud800"')


def test_the_position_is_that_of_the_fault() -> None:
    with pytest.raises(InvalidJson) as caught:
        loads(b'{"a":[1,2,x]}')
    assert caught.value.position == 10


def test_nesting_up_to_the_limit_is_read_and_beyond_it_refused() -> None:
    for start, end in (("[", "]"), ('{"a":', "}"), ("{a:", "}")):
        deep = start * DEPTH_MAX + "1" + end * DEPTH_MAX
        value = loads(deep.encode())
        for _ in range(DEPTH_MAX):
            value = value[0] if isinstance(value, list) else value["a"]  # type: ignore[index,call-overload]
        assert value == 1
        with pytest.raises(InvalidJson, match="nested deeper than 64"):
            loads((start + deep + end).encode())


def test_brackets_inside_texts_do_not_count_as_nesting() -> None:
    value = ["[" * 100, "}" * 100, {"{[" * 100: "]]"}]
    assert loads(fastjson.dumps(value)) == value


def test_a_body_beyond_the_size_that_the_caller_allows_is_refused_unread() -> None:
    assert loads(b"[1,2,3]", size_max=7) == [1, 2, 3]
    with pytest.raises(InvalidJson, match="longer than 6 bytes"):
        loads(b"[1,2,3]", size_max=6)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('[{"topic":"T"},{"$ref":"$[0]"}]', [{"topic": "T"}, {"topic": "T"}]),
        ('{"a":{"b":[{"c":2}]},"d":{"$ref":"$.a.b[0]"}}', {"a": {"b": [{"c": 2}]}, "d": {"c": 2}}),
        ('{"a":[1],"b":{"$ref":"$.a"},"c":{"$ref":"$.b"}}', {"a": [1], "b": [1], "c": [1]}),
        ('{"%RETRY%g":[1],"b":{"$ref":"$.\\\\%RETRY\\\\%g"}}', {"%RETRY%g": [1], "b": [1]}),
        ('{0:[1],"b":{"$ref":"$[0]"}}', {"0": [1], "b": [1]}),
        ('{"$ref":1}', {"$ref": 1}),
        ('{"$ref":"$.a","more":1}', {"$ref": "$.a", "more": 1}),
        ('["$ref"]', ["$ref"]),
    ],
)  # fmt: skip
def test_a_reference_stands_for_what_came_earlier(text: str, value: Any) -> None:
    assert loads(text.encode()) == value


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"$ref":"$"}', "refers to itself"),
        ('{"a":{"$ref":"$"}}', "something earlier"),
        ('{"a":{"b":{"$ref":"$.a"}}}', "something earlier"),
        ('{"a":{"x":{"$ref":"$.b"}},"b":{"y":{"$ref":"$.a"}}}', "something earlier"),
        ('{"a":{"$ref":"$.a"}}', "something earlier"),
        ('{"a":{"$ref":".."}}', "not a path from the root"),
        ('{"a":{"$ref":"@"}}', "not a path from the root"),
        ('{"a":{"$ref":"$.z"}}', "leads nowhere"),
        ('{"a":[],"b":{"$ref":"$.a[0]"}}', "leads nowhere"),
        ('{"a":[],"b":{"$ref":"$.a.b"}}', "leads nowhere"),
        ('{"a":1,"b":{"$ref":"$.a[0]"}}', "leads nowhere"),
        ('{"a":1,"b":{"$ref":"$a"}}', "not a path"),
    ],
)
def test_a_reference_to_anything_else_is_refused(text: str, problem: str) -> None:
    with pytest.raises(InvalidJson, match=problem):
        loads(text.encode())


def test_references_that_explode_are_refused() -> None:
    """Each level holds the one before ten times; in full it would have 10^12 values."""
    levels = ['"l0":[' + ",".join("1" * 10) + "]"]
    for level in range(1, 12):
        reference = f'{{"$ref":"$.l{level - 1}"}}'
        levels.append(f'"l{level}":[' + ",".join([reference] * 10) + "]")
    with pytest.raises(InvalidJson, match="too big"):
        loads(("{" + ",".join(levels) + "}").encode())


MEGA = 10**6
HOSTILE = {
    "open arrays": "[" * MEGA,
    "open objects": '{"a":' * MEGA,
    "open braces": "{" * MEGA,
    "deep and closed": "[" * MEGA + "]" * MEGA,
    "digits": "1" * MEGA,
    "digits in an array": "[" + "1" * MEGA + "]",
    "a long fraction": "[1." + "0" * MEGA + "]",
    "a long exponent": "[1e" + "9" * MEGA + "]",
    "minus signs": "-" * MEGA,
    "blanks": " " * MEGA,
    "backslashes": '"' + "\\" * MEGA,
    "escaped quotes": '"' + '\\"' * (MEGA // 2),
    "odd escapes": "[" + r"'\x41'," * (MEGA // 8),
    "escapes that the strict reader refuses one by one": "[" + r'"\v",' * (MEGA // 5),
    "quotes": '"' * (MEGA + 1),
    "commas": "[" + "," * MEGA,
    "numbers without an end": "[" + "0," * (MEGA // 4),
    "newlines": "\n" * MEGA + "x",
    "a long name": "{" + "a" * MEGA,
    "object keys in object keys": "{" * 60 + '"a":1' + "}:1" * 60,
    "half pairs": '"' + "\\ud83d" * (MEGA // 6) + '"',
    "references": "[[]," + '{"$ref":"$[0]"},' * (MEGA // 16),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_is_refused_at_once(name: str) -> None:
    """A reader that is quadratic or recursive does not get through these in any such time."""
    data = HOSTILE[name].encode()
    started = time.perf_counter()
    with pytest.raises(InvalidJson):
        loads(data)
    assert time.perf_counter() - started < 5


def test_a_long_list_of_references_is_read_at_once() -> None:
    count = 50_000
    data = b"[[]" + b',{"$ref":"$[0]"}' * count + b"]"
    assert loads(data) == [[]] * (count + 1)
