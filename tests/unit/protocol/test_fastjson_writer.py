"""Writing fastjson's dialect, byte for byte."""

from enum import IntEnum, StrEnum
from typing import Any

import pytest

from skylark.errors import LocalProtocolError
from skylark.protocol.fastjson import ObjectKey, dumps, loads


class Colour(StrEnum):
    RED = "RED"


class Number(IntEnum):
    SIX = 6


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"b": 1, "a": {"d": None, "c": [None, True]}}, '{"a":{"c":[null,true]},"b":1}'),
        ({0: "a", 10: "c", 2: "b"}, '{0:"a",2:"b",10:"c"}'),
        ({ObjectKey('{"queueId":0}'): 5}, '{{"queueId":0}:5}'),
        ({"e": {}, "l": [], "t": ()}, '{"e":{},"l":[],"t":[]}'),
        ([1, -2, 0.0, 0.5, 2**63 - 1], "[1,-2,0.0,0.5,9223372036854775807]"),
        ([Colour.RED, Number.SIX, True], '["RED",6,true]'),
        ("标签 \"\\/\n\x01\x7f", '"标签 \\"\\\\/\\n\\u0001\x7f"'),
        (None, "null"),
    ],
)  # fmt: skip
def test_a_value_is_written_as_java_writes_it(value: Any, text: str) -> None:
    assert dumps(value) == text.encode()


def test_integer_keys_are_quoted_where_a_reader_insists() -> None:
    value = {"brokerAddrs": {1: "b", 0: "a"}}
    assert dumps(value, quoted_keys=True) == b'{"brokerAddrs":{"0":"a","1":"b"}}'
    assert dumps(value) == b'{"brokerAddrs":{0:"a",1:"b"}}'


def test_other_scripts_are_escaped_where_a_reader_insists() -> None:
    value = {"标": "签😀"}
    assert dumps(value, ascii_only=True) == b'{"\\u6807":"\\u7b7e\\ud83d\\ude00"}'
    assert loads(dumps(value, ascii_only=True)) == loads(dumps(value)) == value


def test_config_files_have_a_member_a_line_and_tabs() -> None:
    value = {"offsetTable": {"T@g": {1: 6, 0: 5}}, "list": ["a", {"b": 1}], "none": {}}
    assert dumps(value, pretty=True).decode() == (
        "{\n"
        '\t"list":[\n'
        '\t\t"a",\n'
        "\t\t{\n"
        '\t\t\t"b":1\n'
        "\t\t}\n"
        "\t],\n"
        '\t"none":{},\n'
        '\t"offsetTable":{\n'
        '\t\t"T@g":{\n'
        "\t\t\t0:5,\n"
        "\t\t\t1:6\n"
        "\t\t}\n"
        "\t}\n"
        "}"
    )


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, float("nan"), float("inf"), "\ud800"])
@pytest.mark.parametrize("ascii_only", [False, True])
def test_what_no_reader_would_take_is_not_written(value: Any, ascii_only: bool) -> None:
    with pytest.raises(LocalProtocolError):
        dumps({"a": [value]}, ascii_only=ascii_only)
