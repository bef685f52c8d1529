"""fastjson's dialect over arbitrary values and arbitrary text."""

import json
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from skylark.errors import InvalidJson
from skylark.protocol import fastjson
from skylark.protocol.fastjson import ObjectKey, dumps, loads

numbers = st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
# A lone "$ref" member means something else than itself, so it is tested elsewhere.
keys = st.text().filter(lambda key: key != "$ref")
values = st.recursive(
    st.none() | st.booleans() | numbers | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(keys, inner, max_size=5),
    max_leaves=30,
)


def without_nulls(value: Any) -> Any:
    """What is left of a value after writing: members that are None are not written."""
    if isinstance(value, dict):
        return {key: without_nulls(member) for key, member in value.items() if member is not None}
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    return value


@given(values, st.booleans(), st.booleans())
def test_what_is_written_is_read_back(value: Any, ascii_only: bool, pretty: bool) -> None:
    data = dumps(value, ascii_only=ascii_only, pretty=pretty)
    assert loads(data) == without_nulls(value)
    assert json.loads(data) == without_nulls(value)


@given(values, st.booleans())
def test_the_tolerant_reader_agrees_with_the_standard_library(value: Any, ascii_only: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only)
    found = fastjson._tolerant(text)
    assert found == json.loads(text) == loads(text)
    assert repr(found) == repr(json.loads(text))


@given(st.dictionaries(st.integers(-(2**63), 2**63 - 1), values, max_size=5))
def test_bare_and_quoted_integer_keys_mean_the_same(table: dict[int, Any]) -> None:
    expected = without_nulls({str(key): value for key, value in table.items()})
    assert loads(dumps(table)) == expected
    assert loads(dumps(table, quoted_keys=True)) == expected


@given(st.dictionaries(keys, values, max_size=4), values)
def test_an_object_as_a_key_is_read_back_from_its_text(key: dict[str, Any], value: Any) -> None:
    text = ObjectKey(dumps(key).decode())
    found = loads(dumps({text: value, ObjectKey("{1:2}"): 0}))
    assert isinstance(found, dict)
    assert found[text] == without_nulls(value) if value is not None else text not in found
    assert loads(text) == without_nulls(key)


dialect = st.lists(
    st.sampled_from(
        [
            *"{}[]:,\"'\\ \n10-a标",
            *(".5", "e9", "null", "true", "NaN", "{}", "[]", '"x"', "'y'"),
            *("$ref", '"$ref"', '"$"', '"$[0]"', "\\u00e9", "\\ud83d", "\\ude00", "\\x41"),
        ]
    ),
    max_size=25,
).map("".join)  # fmt: skip


@given(st.text() | dialect)
@example("[{},{'$ref':'$[0]'}]")
def test_any_text_is_read_or_refused_by_name(text: str) -> None:
    try:
        value = loads(text)
    except InvalidJson:
        return
    assert_sound(value)
    assert loads(text.encode()) == value


@given(st.text() | dialect)
def test_what_the_standard_library_reads_we_read_alike(text: str) -> None:
    try:
        expected = json.loads(text)
        dumps(expected)
    except (ValueError, RecursionError, fastjson.LocalProtocolError):
        return  # Not JSON, or JSON with numbers and halves of characters that we refuse.
    if "$ref" not in text:
        assert loads(text) == expected
        assert fastjson._tolerant(text) == expected


@given(st.binary())
def test_any_bytes_are_read_or_refused_by_name(data: bytes) -> None:
    try:
        assert_sound(loads(data))
    except InvalidJson:
        return


def assert_sound(value: Any) -> None:
    """Only what JSON has: text keys, 64-bit integers, finite floats, whole characters."""
    if isinstance(value, dict):
        for key, member in value.items():
            assert isinstance(key, str)
            key.encode()
            assert_sound(member)
    elif isinstance(value, list):
        for item in value:
            assert_sound(item)
    elif isinstance(value, str):
        value.encode()
    elif isinstance(value, float):
        assert value - value == 0
    elif isinstance(value, int):
        assert -(2**63) <= value < 2**63
    else:
        assert value is None
