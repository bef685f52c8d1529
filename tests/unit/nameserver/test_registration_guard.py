"""With a registration key, only who proves it may change what clients see (S20)."""

from __future__ import annotations

import random
from typing import Any

import pytest
from test_nameserver_handlers import BROKER, REGISTRATION, Connection, Server

from skylark.errors import ConfigError
from skylark.nameserver import NameServerConfig
from skylark.nameserver.registration_guard import RegistrationGuard
from skylark.net.switchboard import Handler, RawHandler, Switchboard
from skylark.protocol import registration_proof as proofs
from skylark.protocol.acl import sign_fields
from skylark.protocol.codes import RequestCode
from skylark.protocol.command import Command

KEY = "the key of this cluster"
NO_PERMISSION = 16
CHANGES: dict[int, dict[str, Any]] = {
    100: {"namespace": "n", "key": "k", "value": "v"},
    102: {"namespace": "n", "key": "k"},
    103: BROKER,
    104: BROKER,
    205: {"brokerName": "b"},
    216: {"topic": "T"},
    318: {},
    322: BROKER,
    327: {"brokerName": "b"},
}
BODIES = {103: REGISTRATION.to_json(), 318: b"orderMessageEnable=true\n", 322: b'{"counter":0}'}


class Guarded(Server):
    """The handlers of a name server that has a key."""

    def __init__(self, *, takes_acl: bool = False) -> None:
        super().__init__()
        guard = RegistrationGuard(KEY, random.Random(1).randbytes, takes_acl=takes_acl)
        self.handlers._guard = guard
        self.switchboard = Switchboard(
            {code: Handler(*entry) for code, entry in self.handlers.table().items()}
            | {code: RawHandler(handle) for code, handle in self.handlers.raw_table().items()}
        )

    def challenge(self, peer: Connection | None = None) -> str:
        answer = self.ask(205, {"brokerName": "b"}, peer=peer)
        assert answer.code == NO_PERMISSION
        return answer.fields[proofs.CHALLENGE]

    def proved(self, code: int, challenge: str, *, key: str = KEY, number: int = 1) -> Command:
        fields = {name: str(value) for name, value in CHANGES[code].items()}
        command = Command(code=code, fields=fields, body=BODIES.get(code, b""), version=409)
        signer = proofs.RegistrationKey(key)
        signer._used = number - 1
        signer.sign(command, challenge)
        return command

    def send(self, command: Command, peer: Connection | None = None) -> Command:
        answer = self.switchboard.begin(command, peer or self.peer)
        assert isinstance(answer, Command)
        return answer


@pytest.fixture
def server() -> Guarded:
    return Guarded()


def test_every_request_that_changes_something_is_guarded() -> None:
    reads = {101, 105, 106, 206, 219, 224, 304, 311, 312, 313, 319}
    assert {int(code) for code in proofs.PROVED_CODES} == set(CHANGES)
    assert set(Server().handlers.table()) | {105} == reads | set(CHANGES)


@pytest.mark.parametrize("code", sorted(CHANGES))
def test_without_the_key_nothing_can_be_changed(server: Guarded, code: int) -> None:
    answer = server.ask(code, CHANGES[code], BODIES.get(code, b""))
    assert answer.code == NO_PERMISSION
    assert "SKYLARK_REGISTRATION_KEY" in (answer.remark or "")
    assert (server.routes.live, server.changed) == ([], [])


@pytest.mark.parametrize("code", sorted(CHANGES))
def test_with_the_key_everything_is_as_without_a_guard(server: Guarded, code: int) -> None:
    assert server.send(server.proved(code, server.challenge())).code == 0


def test_routes_and_settings_are_read_without_a_key(server: Guarded) -> None:
    server.send(server.proved(103, server.challenge()))
    assert server.ask(105, {"topic": "T"}).code == 0
    assert server.ask(106).code == 0
    assert server.ask(319).code == 0


def test_another_key_is_no_key(server: Guarded) -> None:
    answer = server.send(server.proved(103, server.challenge(), key="another key altogether"))
    assert (answer.code, server.routes.live) == (NO_PERMISSION, [])


def test_a_proof_counts_once_and_on_its_own_connection(server: Guarded) -> None:
    proved = server.proved(103, server.challenge())
    recorded = Command(code=103, fields=dict(proved.fields), body=bytes(proved.body), version=409)
    assert server.send(proved).code == 0
    assert "has been used" in (server.send(recorded).remark or "")
    thief = Connection("10.6.6.6:666")
    server.challenge(thief)
    assert server.send(recorded, thief).code == NO_PERMISSION


def test_a_connection_that_comes_again_has_another_challenge(server: Guarded) -> None:
    before = server.challenge()
    server.handlers.connection_lost(server.peer)
    assert server.challenge() != before
    assert server.send(server.proved(103, before)).code == NO_PERMISSION


def test_a_proof_does_not_fit_another_request_field_or_body(server: Guarded) -> None:
    challenge = server.challenge()
    wipe = server.proved(205, challenge)
    wipe.code = 327
    assert server.send(wipe).code == NO_PERMISSION
    moved = server.proved(103, challenge, number=2)
    moved.fields["brokerAddr"] = "10.6.6.6:10911"
    assert server.send(moved).code == NO_PERMISSION
    # RocketMQ's signature joins values without a mark between them: this cut would fit it.
    cut = server.proved(103, challenge, number=3)
    cut.fields["brokerAddr"], cut.fields["brokerId"] = "10.0.0.1:1091", "10"
    assert server.send(cut).code == NO_PERMISSION
    body = server.proved(103, challenge, number=4)
    body.body = REGISTRATION.to_json().replace(b"8", b"9")
    assert server.send(body).code == NO_PERMISSION
    assert server.routes.live == []


@pytest.mark.parametrize("counter", ["", "-1", "x", "²", "9" * 30, str(2**63)])
def test_a_number_that_is_none_is_refused(server: Guarded, counter: str) -> None:
    command = server.proved(205, challenge := server.challenge())
    command.fields[proofs.COUNTER] = counter
    command.fields[proofs.PROOF] = proofs.make_proof(
        KEY, challenge=challenge, code=205, fields=command.fields, body=b""
    )
    assert server.send(command).code == NO_PERMISSION


def test_numbers_may_overtake_each_other_a_little(server: Guarded) -> None:
    challenge = server.challenge()
    for number, code in ((5, 0), (3, 0), (5, 16), (3, 16), (2_000, 0), (900, 16), (1_500, 0)):
        assert server.send(server.proved(205, challenge, number=number)).code == code, number


def test_what_a_connection_has_used_does_not_grow_without_end(server: Guarded) -> None:
    challenge = server.challenge()
    for number in range(1, 6_000, 2):
        assert server.send(server.proved(205, challenge, number=number)).code == 0
    guard = server.handlers._guard
    assert guard is not None
    (conversation,) = guard._conversations.values()
    assert len(conversation.used) <= 2_049
    guard.connection_lost(server.peer)
    assert not guard._conversations


def test_an_account_of_rocketmqs_tools_counts_where_that_is_switched_on_and_not_for_brokers() -> (
    None
):
    for takes_acl, code, expected in (
        (True, 205, 0), (False, 205, 16), (True, 103, 16), (True, 104, 16),
    ):  # fmt: skip
        server = Guarded(takes_acl=takes_acl)
        fields = {name: str(value) for name, value in CHANGES[code].items()}
        body = BODIES.get(code, b"")
        signed = sign_fields(fields, body, access_key="operator", secret_key=KEY)
        assert server.ask(code, signed, body).code == expected
        signed["Signature"] = "x" + signed["Signature"][1:]
        assert server.ask(code, signed, body).code == NO_PERMISSION


def test_an_account_may_sign_after_the_proof(server: Guarded) -> None:
    command = server.proved(205, server.challenge())
    command.fields = sign_fields(command.fields, b"", access_key="a", secret_key="another")
    assert server.send(command).code == 0


def test_a_key_that_could_be_guessed_is_refused_and_no_key_is_shown() -> None:
    with pytest.raises(ConfigError, match="shorter than 16 characters"):
        NameServerConfig(registration_key="secret")
    assert KEY not in repr(proofs.RegistrationKey(KEY))
    assert RequestCode.GET_NAMESRV_CONFIG not in proofs.PROVED_CODES
