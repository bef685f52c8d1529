"""Settings as `key=value` lines: Java's properties syntax, read and written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.errors import InvalidBody
from skylark.protocol.bodies import format_properties, parse_properties


@pytest.mark.parametrize(
    ("text", "properties"),
    [
        ("", {}),
        ("traceOn=true\n", {"traceOn": "true"}),
        ("a=1\nb=2", {"a": "1", "b": "2"}),
        ("a=1\r\nb=2\rc=3\n", {"a": "1", "b": "2", "c": "3"}),
        ("# note\n! note\n\n   \n a = 1 \n", {"a": "1 "}),
        ("a:1\nb 2\nc\t=\t3\nd : = 4", {"a": "1", "b": "2", "c": "3", "d": "= 4"}),
        ("a\nb=\n", {"a": "", "b": ""}),
        ("a=1\na=2", {"a": "2"}),
        ("a=b=c", {"a": "b=c"}),
        ("a=one\\\n   two\\\n\t three\nb=1", {"a": "onetwothree", "b": "1"}),
        ("a=one\\\\\nb=1", {"a": "one\\", "b": "1"}),
        ("a=1\\\n", {"a": "1"}),
        ("a=x\\\n#y", {"a": "x#y"}),
        ("a\\ b\\=\\:=c\\ d", {"a b=:": "c d"}),
        (r"a=\t\n\r\f\z\\", {"a": "\t\n\r\fz\\"}),
        (r"a=\u4e2d\ud83d\ude00", {"a": "中😀"}),
        ("名=值", {"名": "值"}),
        ("a=#not a note", {"a": "#not a note"}),
        ("=x", {"": "x"}),
    ],
)
def test_a_spelling_has_its_meaning(text: str, properties: dict[str, str]) -> None:
    assert parse_properties(text) == properties
    assert parse_properties(memoryview(text.encode())) == properties


@pytest.mark.parametrize(
    ("data", "problem"),
    [(b"a=\xff", "not UTF-8 at byte 2"), (rb"a=\u12", "four hexadecimal"), (rb"\ud800=1", "half")],
)
def test_what_java_could_not_read_is_refused(data: bytes, problem: str) -> None:
    with pytest.raises(InvalidBody, match=problem):
        parse_properties(data)


def test_settings_are_written_a_line_each_and_in_order() -> None:
    assert format_properties({"b": "2", "a": "x=y:z #1"}) == b"b=2\na=x=y:z #1\n"
    assert format_properties({"a b": " x\\\n"}) == b"a\\ b=\\ x\\\\\\n\n"
    assert format_properties({"路径": "值"}) == "路径=值\n".encode()


@given(st.dictionaries(st.text(), st.text(), max_size=5))
def test_settings_are_read_back_as_they_were_written(properties: dict[str, str]) -> None:
    assert parse_properties(format_properties(properties)) == properties


@given(st.text(alphabet="ab \t=:#!\\\n\r\fu0é"))
def test_any_text_is_read_or_refused_by_name(text: str) -> None:
    try:
        properties = parse_properties(text)
    except InvalidBody:
        return
    assert parse_properties(format_properties(properties)) == properties
