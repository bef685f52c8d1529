"""Message: what an application may build, and what is refused before it reaches a broker."""

from __future__ import annotations

from typing import Any

import pytest

from skylark.errors import LocalProtocolError
from skylark.model.message import (
    RESERVED_PROPERTIES,
    CompressionType,
    Message,
    Property,
    TransactionType,
    require_user_property,
)


def test_a_message_is_built_in_one_line() -> None:
    message = Message("OrderTopic", b"...", tag="Paid", keys=["o-1", "o-2"], properties={"a": "1"})
    assert message.all_properties() == {
        "a": "1",
        "KEYS": "o-1 o-2",
        "TAGS": "Paid",
        "WAIT": "true",
    }
    assert message.keys == ("o-1", "o-2")


def test_one_key_may_be_given_as_a_string() -> None:
    assert Message("T", keys="o-1").keys == ("o-1",)


def test_a_message_does_not_change_with_the_callers_dict() -> None:
    properties = {"a": "1"}
    message = Message("T", properties=properties)
    properties["a"] = "2"
    assert message.properties == {"a": "1"}


@pytest.mark.parametrize(
    ("field", "value", "name"),
    [
        ("delay_level", 3, "DELAY"),
        ("delay_ms", 1500, "TIMER_DELAY_MS"),
        ("deliver_at_ms", 1500, "TIMER_DELIVER_MS"),
    ],
)
def test_a_delay_becomes_a_property(field: str, value: int, name: str) -> None:
    fields: dict[str, Any] = {field: value}
    assert Message("T", **fields).all_properties()[name] == str(value)


def test_a_sender_may_choose_not_to_wait() -> None:
    assert Message("T", wait_stored=False).all_properties() == {"WAIT": "false"}


def test_bytes_like_bodies_are_taken_and_texts_are_not() -> None:
    assert Message("T", bytearray(b"x")).body == b"x"  # type: ignore[arg-type]
    assert Message("T", memoryview(b"x")).body == b"x"  # type: ignore[arg-type]
    with pytest.raises(LocalProtocolError, match="not str: encode it"):
        Message("T", "text")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "fields",
    [
        {"topic": ""},
        {"tag": ""},
        {"tag": " "},
        {"tag": "a || b"},
        {"tag": "a\x01"},
        {"keys": ["a b"]},
        {"keys": [""]},
        {"keys": ["\x02"]},
        {"properties": {"KEYS": "k"}},
        {"properties": {"": "k"}},
        {"properties": {"k": ""}},
        {"properties": {"k\x01": "v"}},
        {"properties": {"k": "v\x02"}},
        {"properties": {"k": 1}},
        {"delay_level": 19},
        {"delay_level": -1},
        {"delay_level": 1, "delay_ms": 1},
        {"delay_ms": -1},
        {"delay_ms": 1, "deliver_at_ms": 1},
        {"flag": 2**31},
    ],
)
def test_what_could_not_be_sent_is_refused_at_once(fields: dict[str, Any]) -> None:
    with pytest.raises(LocalProtocolError):
        Message(**{"topic": "T", **fields})


@pytest.mark.parametrize("name", sorted(RESERVED_PROPERTIES))
def test_reserved_names_are_refused(name: str) -> None:
    with pytest.raises(LocalProtocolError, match="reserved"):
        require_user_property(name, "1")


@pytest.mark.parametrize(
    "name",
    [
        Property.INNER_MULTI_DISPATCH,
        Property.CHECK_IMMUNITY_TIME_IN_SECONDS,
        Property.TRANSACTION_CHECK_TIMES,
        Property.TRAN_PREPARED_QUEUE_OFFSET,
        "keys",
        "X",
    ],
)
def test_names_that_java_leaves_to_applications_are_free(name: str) -> None:
    require_user_property(name, "1")


def test_types_are_read_from_the_sys_flag() -> None:
    assert [TransactionType.of(flag) for flag in (0x301, 0x5, 0x38, 0xFF)] == [
        TransactionType.NONE,
        TransactionType.PREPARED,
        TransactionType.COMMIT,
        TransactionType.ROLLBACK,
    ]
    assert CompressionType.ZLIB == 0x300
