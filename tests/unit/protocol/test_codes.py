"""The tables of codes against the protocol description."""

from __future__ import annotations

import pytest

from skylark.protocol.codes import Language, RequestCode, ResponseCode, Serialization
from skylark.protocol.command import VERSION, Command


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("SEND_MESSAGE", 10),
        ("PULL_MESSAGE", 11),
        ("HEART_BEAT", 34),
        ("REGISTER_BROKER", 103),
        ("GET_ROUTEINFO_BY_TOPIC", 105),
        ("SEND_MESSAGE_V2", 310),
        ("SEND_BATCH_MESSAGE", 320),
        ("DELETE_EXPIRED_COMMITLOG", 329),
        ("POP_MESSAGE", 200050),
    ],
)
def test_request_codes_have_their_numbers(name: str, code: int) -> None:
    assert RequestCode[name] == code


def test_every_request_code_of_4_9_is_there_once() -> None:
    # The rows of the code table up to 329, the runs among them written out.
    known = {*range(10, 16), 17, *range(21, 24), *range(25, 44), 45, 46, *range(50, 55)}
    known |= {*range(100, 107), *range(200, 217), *range(219, 225), *range(300, 330)}
    ours = [int(code) for code in RequestCode if code <= 329]
    assert sorted(ours) == sorted(known)
    assert len(set(RequestCode)) == len(RequestCode.__members__), "a number has two names"


def test_response_codes_have_their_numbers() -> None:
    known = {*range(5), *range(10, 30), *range(200, 212), 215, 1500}
    assert {int(code) for code in ResponseCode} == known
    assert len(set(ResponseCode)) == len(ResponseCode.__members__)


def test_languages_and_serializations_have_their_numbers() -> None:
    assert [language.value for language in Language] == list(range(14))
    assert (Language.JAVA, Language.CPP, Language.PYTHON, Language.GO) == (0, 1, 3, 9)
    assert (Serialization.JSON, Serialization.ROCKETMQ) == (0, 1)


def test_we_say_that_we_are_4_9_8() -> None:
    assert VERSION == 213 + 2 * (9 * 10 + 8) == 409


class TestCommand:
    def test_a_reply_carries_opaque_and_serialization_of_its_request(self) -> None:
        request = Command(code=105, opaque=-9, version=317, language=9, serialization=1)
        reply = request.reply(17, "no", {"a": "b"}, b"x")
        assert reply == Command(
            code=17,
            opaque=-9,
            flag=1,
            fields={"a": "b"},
            body=b"x",
            remark="no",
            serialization=1,
        )
        assert reply.is_response
        assert not reply.is_oneway

    def test_flags_tell_requests_from_responses_and_oneways(self) -> None:
        request = Command.request(15, oneway=True)
        assert request.is_oneway
        assert not request.is_response
        assert not Command.request(15).is_oneway
        assert Command(code=0, flag=3).is_response

    def test_commands_do_not_share_their_fields(self) -> None:
        first, second = Command.request(1), Command.request(1)
        first.fields["a"] = "b"
        assert second.fields == {}
