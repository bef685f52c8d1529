"""The proof by which a sender shows a name server that it knows the registration key.

    field          in          what
    regChallenge   a refusal   32 hex digits that the name server made for this connection alone
    regCounter     a request   a number that the sender has not used before
    regProof       a request   HMAC-SHA256(key, text), in hex

    text           "skylark registration 1", challenge, counter, request code; then name and value
                   of every extField but regProof and an account's (acl.py), ordered by name; then
                   the body. Each of these with its length before it, as 4 bytes, big-endian.

A proof holds for one request, one connection and one use, and needs no clocks that agree. The
signature of an account, which may be added to the same request later, has no lengths between values
and leaves the request code out: what is signed for one request can be cut into another.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Mapping
from typing import Final

from .acl import ACCESS_KEY, SECURITY_TOKEN, SIGNATURE
from .codes import RequestCode
from .command import Command
from .crc import Buffer
from .properties import encode_text

# What changes something at a name server.
BROKERS_CODES: Final = frozenset(
    {
        RequestCode.REGISTER_BROKER,
        RequestCode.UNREGISTER_BROKER,
        RequestCode.QUERY_DATA_VERSION,
    }
)
OPERATORS_CODES: Final = frozenset(
    {
        RequestCode.WIPE_WRITE_PERM_OF_BROKER,
        RequestCode.ADD_WRITE_PERM_OF_BROKER,
        RequestCode.PUT_KV_CONFIG,
        RequestCode.DELETE_KV_CONFIG,
        RequestCode.DELETE_TOPIC_IN_NAMESRV,
        RequestCode.UPDATE_NAMESRV_CONFIG,
    }
)
PROVED_CODES: Final = BROKERS_CODES | OPERATORS_CODES

CHALLENGE: Final = "regChallenge"
COUNTER: Final = "regCounter"
PROOF: Final = "regProof"
CHALLENGE_BYTES: Final = 16
KEY_CHARS_MIN: Final = 16  # Whoever has seen a proof can try keys as fast as machines count.

_NOT_PROVED: Final = frozenset({PROOF, ACCESS_KEY, SECURITY_TOKEN, SIGNATURE})
_PURPOSE: Final = b"skylark registration 1"
_LENGTH: Final = struct.Struct(">I")


def make_proof(
    key: str, *, challenge: str, code: int, fields: Mapping[str, str], body: Buffer
) -> str:
    """The proof of one request; its fields hold the counter already."""
    proof = hmac.new(encode_text(key), digestmod=hashlib.sha256)

    def add(part: bytes) -> None:
        proof.update(_LENGTH.pack(len(part)))
        proof.update(part)

    add(_PURPOSE)
    add(encode_text(challenge))
    add(encode_text(fields.get(COUNTER, "")))
    add(b"%d" % code)
    for name in sorted(fields):
        if name not in _NOT_PROVED:
            add(encode_text(name))
            add(encode_text(fields[name]))
    add(bytes(body))
    return proof.hexdigest()


def is_proof_valid(
    key: str, *, challenge: str, code: int, fields: Mapping[str, str], body: Buffer
) -> bool:
    """Whether a request holds the proof for a challenge."""
    right = make_proof(key, challenge=challenge, code=code, fields=fields, body=body)
    # In constant time: how far a guess agrees must not show.
    return hmac.compare_digest(encode_text(fields.get(PROOF, "")), right.encode("ascii"))


class RegistrationKey:
    """The key, and the numbers that were used with it; one for all connections of a process."""

    def __init__(self, secret: str) -> None:
        self._secret = secret
        self._used = 0

    def __repr__(self) -> str:
        return "RegistrationKey(***)"

    def sign(self, command: Command, challenge: str) -> None:
        """Add a proof to a request, in place of an earlier one."""
        self._used += 1
        fields = {**command.fields, COUNTER: str(self._used)}
        fields[PROOF] = make_proof(
            self._secret, challenge=challenge, code=command.code, fields=fields, body=command.body
        )
        command.fields = fields
