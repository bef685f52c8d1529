"""The properties text: RocketMQ's rules for reading, ours for writing."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.errors import InvalidBody, LocalProtocolError
from skylark.protocol import properties
from skylark.protocol.properties import (
    LazyProperties,
    encode_properties,
    format_properties,
    require_sound_properties,
    split_keys,
)

Parse = Callable[[str | bytes | bytearray | memoryview], dict[str, str]]


@pytest.fixture(params=["pure", "compiled"])
def parse(request: pytest.FixtureRequest) -> Parse:
    if request.param == "pure":
        return properties.parse_properties_pure
    if properties.parse_properties is properties.parse_properties_pure:
        pytest.skip("the compiled twin is not built or switched off")
    return properties.parse_properties


READINGS = [
    ("", {}),
    ("a\x011", {"a": "1"}),
    ("a\x011\x02b\x012", {"a": "1", "b": "2"}),
    ("a\x011\x02b\x012\x02", {"a": "1", "b": "2"}),
    ("\x02\x02a\x011\x02\x02", {"a": "1"}),
    ("a\x011\x02a\x012", {"a": "2"}),
    ("a\x011\x02a\x01\x02", {"a": "1"}),
    ("a\x01", {}),
    ("\x011", {}),
    ("\x01a\x011", {}),
    ("a", {}),
    ("a\x01b\x01c", {"a": "b\x01c"}),
    ("a\x01\x01", {"a": "\x01"}),
    ("ключ\x01значение\x02标\x01签", {"ключ": "значение", "标": "签"}),
    ("k\x01한국어 𝄞", {"k": "한국어 𝄞"}),
    ("x" * 100 + "\x01y", {"x" * 100: "y"}),
    ("CLUSTER\x01c\x02__CRC32#\x010123456789\x02", {"CLUSTER": "c", "__CRC32#": "0123456789"}),
]


@pytest.mark.parametrize(("text", "expected"), READINGS)
def test_a_text_reads_as_in_rocketmq(parse: Parse, text: str, expected: dict[str, str]) -> None:
    data = text.encode()
    assert parse(text) == expected
    assert parse(data) == expected
    assert parse(bytearray(data)) == expected
    assert parse(memoryview(data)) == expected


def test_bytes_that_are_not_utf8_become_replacement_characters(parse: Parse) -> None:
    assert parse(b"\xb1\x01\xe4\xb8\x02b\x012") == {"\ufffd": "\ufffd", "b": "2"}


def test_a_lone_surrogate_in_a_header_is_kept(parse: Parse) -> None:
    assert parse("a\x01\ud800\x02b\x01é") == {"a": "\ud800", "b": "é"}


def test_the_golden_texts_encode_without_a_trailing_separator() -> None:
    assert encode_properties({"TAGS": "A"}).hex() == "544147530141"
    text = encode_properties({"KEYS": "k1 k2", "TAGS": "TagB"})
    assert text.hex() == "4b455953016b31206b3202544147530154616742"
    assert encode_properties({"WAIT": "true", "TAGS": "A"}).hex() == (
        "57414954017472756502544147530141"
    )


def test_values_of_none_are_left_out() -> None:
    assert format_properties({"a": None, "b": "2"}) == "b\x012"


@pytest.mark.parametrize("name", ["", "a\x01", "\x02", "a\x02b"])
def test_a_name_that_would_read_back_as_something_else_is_refused(name: str) -> None:
    with pytest.raises(LocalProtocolError, match="property"):
        format_properties({name: "1"})


@pytest.mark.parametrize("value", ["\x01", "a\x02b", "a\x01b"])
def test_a_value_with_a_separator_is_refused(value: str) -> None:
    with pytest.raises(LocalProtocolError, match="separator"):
        format_properties({"a": value})


@given(st.text(st.sampled_from("ab\x01\x02")))
def test_whatever_was_read_can_be_handed_on(text: str) -> None:
    found = properties.parse_properties(text)
    assert properties.parse_properties(format_properties(found, as_read=True)) == found
    assert properties.parse_properties(encode_properties(found, as_read=True)) == found


def test_properties_end_at_what_a_record_can_hold() -> None:
    assert len(encode_properties({"a": "x" * 32_765})) == 32_767
    with pytest.raises(LocalProtocolError, match="32768"):
        encode_properties({"a": "x" * 32_766})


def test_keys_are_split_at_spaces() -> None:
    assert split_keys(" a  b ") == ("a", "b")
    assert split_keys("") == split_keys(None) == ()


@pytest.mark.parametrize(
    "text",
    ["", "a\x011", "a\x011\x02", "a\x01\x02", b"\xb1\x01\xea", "KEYS\x01" + " ".join(["k"] * 64)],
)
def test_a_sound_text_may_be_stored(text: str | bytes) -> None:
    require_sound_properties(text)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a", "separator"),
        ("a\x011\x02b", "separator"),
        ("\x011", "name"),
        ("a\x011\x02\x02b\x012", "separator"),
        ("a\x01" + "x" * 32_766, "32768 bytes"),
        ("标\x01" + "签" * 11_000, "bytes"),
        ("KEYS\x01" + " ".join(["k"] * 10_000), "10000 keys"),
    ],
)
def test_an_unsound_text_is_refused(text: str, problem: str) -> None:
    with pytest.raises(InvalidBody, match=problem):
        require_sound_properties(text)


def test_lazy_properties_are_a_mapping() -> None:
    lazy = LazyProperties(b"a\x011\x02b\x012")
    assert lazy == {"a": "1", "b": "2"}
    assert lazy == LazyProperties(b"b\x012\x02a\x011")
    assert lazy != {"a": "1"}
    assert lazy != 1
    assert (lazy["a"], lazy.get("c"), lazy.get("c", "x"), len(lazy)) == ("1", None, "x", 2)
    assert list(lazy) == ["a", "b"]
    assert "a" in lazy
    assert {**lazy} == dict(lazy) == dict(lazy.items())
    assert repr(lazy) == "{'a': '1', 'b': '2'}"
    with pytest.raises(KeyError):
        lazy["c"]
    copy = lazy.as_dict()
    copy["a"] = "changed"
    assert lazy["a"] == "1"
    assert pickle.loads(pickle.dumps(lazy)) == lazy


@given(st.lists(st.sampled_from([b"\x01", b"\x02", b"a", b"KEYS\x01", b" ", b"\n"]), max_size=12))
def test_the_quick_look_passes_what_the_thorough_one_passes(pieces: list[bytes]) -> None:
    data = b"".join(pieces)

    def is_sound() -> bool:
        try:
            require_sound_properties(data)
        except InvalidBody:
            return False
        return True

    found = is_sound()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("skylark.protocol.properties._SOUND", re.compile(b"(?!)"))
        assert is_sound() == found
