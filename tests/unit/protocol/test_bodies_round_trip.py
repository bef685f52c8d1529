"""Typed bodies over arbitrary values: what is written is read back."""

import dataclasses
from collections.abc import Mapping
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from hypothesis import given
from hypothesis import strategies as st

from skylark.errors import InvalidBody
from skylark.protocol import bodies, fastjson
from skylark.protocol.bodies import (
    Body,
    ConsumerFilterData,
    ConsumerFilterTable,
    RegisterBrokerBody,
    ResetOffsetBody,
    TopicRouteBody,
)

EVERYTHING = [getattr(bodies, name) for name in dir(bodies)]
KINDS = [
    kind
    for kind in EVERYTHING
    if isinstance(kind, type) and issubclass(kind, Body) and kind is not Body
]
PLAIN: dict[Any, st.SearchStrategy[Any]] = {
    str: st.text(max_size=8),
    int: st.integers(-(2**31), 2**31 - 1),
    float: st.floats(allow_nan=False, allow_infinity=False),
    bool: st.booleans(),
}


def values_of(hint: Any) -> st.SearchStrategy[Any]:
    if hint in PLAIN:
        return PLAIN[hint]
    if hint is ConsumerFilterTable:
        # A table by topic and group: it has no place for two of one name, nor for their order.
        filters = st.lists(values_of(ConsumerFilterData), max_size=1)
        return st.builds(ConsumerFilterTable, filters.map(tuple))
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return st.one_of(st.none() if kind is NoneType else values_of(kind) for kind in arguments)
    if origin is tuple:
        return st.lists(values_of(arguments[0]), max_size=3).map(tuple)
    if origin is Mapping:
        return st.dictionaries(*map(values_of, arguments), max_size=3)
    if issubclass(hint, Enum):
        return st.sampled_from(hint)
    assert dataclasses.is_dataclass(hint)
    hints = get_type_hints(hint)
    return st.builds(
        hint, **{field.name: values_of(hints[field.name]) for field in dataclasses.fields(hint)}
    )


any_body = st.sampled_from(KINDS).flatmap(values_of)


@given(any_body, st.booleans())
def test_a_body_is_read_back_as_it_was_written(body: Body, pretty: bool) -> None:
    assert type(body).from_json(body.to_json(pretty=pretty)) == body


@given(values_of(TopicRouteBody))
def test_both_dialects_of_a_route_mean_the_same(body: TopicRouteBody) -> None:
    assert TopicRouteBody.from_json(body.to_json(standard=True)) == body
    assert body.to_json(standard=True).isascii()


@given(values_of(ResetOffsetBody))
def test_both_forms_of_a_reset_mean_the_same(body: ResetOffsetBody) -> None:
    assert ResetOffsetBody.from_json(body.to_list_json()) == body


@given(values_of(RegisterBrokerBody))
def test_the_compressed_form_keeps_what_it_has_room_for(body: RegisterBrokerBody) -> None:
    topics = {
        f"t{number}": dataclasses.replace(topic, name=f"t{number}", sys_flag=0, order=False)
        for number, topic in enumerate(body.table.topics.values())
    }
    body = dataclasses.replace(body, table=dataclasses.replace(body.table, topics=topics))
    assert RegisterBrokerBody.from_compressed(body.to_compressed()) == body


texts = st.text(max_size=5)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(-9, 9) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)


@given(any_body, st.data())
def test_a_body_with_a_wrong_member_is_read_or_refused_by_name(
    body: Body, data: st.DataObject
) -> None:
    value = fastjson.loads(body.to_json())
    node: Any = value
    while isinstance(node, dict | list) and node:
        places = list(node) if isinstance(node, dict) else list(range(len(node)))
        place = data.draw(st.sampled_from(places))
        if not isinstance(node[place], dict | list) or data.draw(st.booleans()):
            node[place] = data.draw(json_values)
            break
        node = node[place]
    try:
        type(body).from_json(fastjson.dumps(value))
    except InvalidBody:
        return
