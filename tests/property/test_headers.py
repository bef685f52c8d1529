"""Typed headers over arbitrary values: what is written is read back, and garbage is refused."""

import dataclasses
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from skylark.errors import InvalidHeader
from skylark.protocol.header import Header
from skylark.protocol.headers import (
    REQUEST_HEADERS,
    RESPONSE_HEADERS,
    SendMessageRequest,
    SendMessageRequestV2,
)

KINDS = sorted(
    {*filter(None, REQUEST_HEADERS.values()), *RESPONSE_HEADERS.values()},
    key=lambda kind: kind.__name__,
)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "str": st.text(),
    "bool": st.booleans(),
    "I32": st.integers(-(2**31), 2**31 - 1),
    "I64": st.integers(-(2**63), 2**63 - 1),
}


def headers_of(kind: type[Header]) -> st.SearchStrategy[Header]:
    members = {}
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        name, _, optional = str(field.type).partition(" | ")
        members[field.name] = st.none() | VALUES[name] if optional else VALUES[name]
    return st.builds(kind, **members)


@given(st.sampled_from(KINDS).flatmap(headers_of))
def test_a_header_is_read_back_as_it_was_written(value: Header) -> None:
    fields = value.to_fields()
    assert type(value).from_fields(fields) == value
    assert type(value).from_fields({**fields, "unknown": "x"}) == value


@given(headers_of(SendMessageRequest))
def test_a_send_survives_the_way_through_its_short_form(value: Header) -> None:
    assert isinstance(value, SendMessageRequest)
    short = SendMessageRequestV2.from_fields(value.to_v2().to_fields())
    assert short.to_v1() == value


@given(
    st.sampled_from(KINDS).flatmap(lambda kind: st.tuples(st.just(kind), headers_of(kind))),
    st.data(),
)
def test_a_garbled_header_is_read_or_refused_by_name(
    pair: tuple[type[Header], Header], data: st.DataObject
) -> None:
    kind, value = pair
    fields = value.to_fields()
    if fields:
        name = data.draw(st.sampled_from(sorted(fields)))
        fields[name] = data.draw(st.text(max_size=40))
    problem: InvalidHeader | None = None
    try:
        kind.from_fields(fields)
    except InvalidHeader as error:
        problem = error
    assert problem is None or (problem.header == kind.__name__ and problem.field in fields)
