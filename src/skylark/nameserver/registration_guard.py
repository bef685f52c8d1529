"""RegistrationGuard: with a registration key, only who proves it may change what clients see.

    guarded               REGISTER_BROKER, UNREGISTER_BROKER, QUERY_DATA_VERSION, WIPE_WRITE_PERM,
                          ADD_WRITE_PERM, PUT_KV, DELETE_KV, DELETE_TOPIC, UPDATE_NAMESRV_CONFIG
    not guarded           what only reads: routes, lists, settings

A request without a proof is refused with a challenge for its connection; the sender proves the key
over it (protocol/registration_proof.py) and asks again. A number that was used before on the same
connection is a replay. Numbers may overtake each other a little, since a sender's requests may.

RocketMQ's tools can sign with an account (aclRPCHook), where the secret is the key. Such a
signature can be replayed and cut into another request, so it counts only if registrationKeyAcl is
on, and never for brokers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from ..protocol.acl import SIGNATURE, is_signature_valid
from ..protocol.codes import ResponseCode
from ..protocol.exchange import AnyRequest, Peer, Response
from ..protocol.headers import route as headers
from ..protocol.registration_proof import (
    CHALLENGE_BYTES,
    COUNTER,
    OPERATORS_CODES,
    PROOF,
    is_proof_valid,
)

logger = logging.getLogger(__name__)

OVERTAKE_MAX: Final = 1_024
_COUNTER_MAX: Final = 2**63

Handle = Callable[[AnyRequest, Peer], Response | None]


@dataclass(slots=True)
class _Conversation:
    """What was said on one connection."""

    challenge: str
    highest: int = 0
    used: set[int] = field(default_factory=set)  # Of the last numbers up to the highest.
    is_suspect: bool = False

    def take(self, counter: int) -> bool:
        """Note a number; False if it was used, or is too old to know."""
        if counter <= self.highest - OVERTAKE_MAX or counter in self.used:
            return False
        self.used.add(counter)
        if counter > self.highest:
            self.highest = counter
            if len(self.used) > 2 * OVERTAKE_MAX:
                self.used = {used for used in self.used if used > counter - OVERTAKE_MAX}
        return True


class RegistrationGuard:
    """Knows the key, and what each connection has proved with it."""

    def __init__(
        self, key: str, random_bytes: Callable[[int], bytes], *, takes_acl: bool = False
    ) -> None:
        self._key = key
        self._random_bytes = random_bytes
        self._takes_acl = takes_acl
        self._conversations: dict[Peer, _Conversation] = {}

    def guarded(self, handle: Handle) -> Handle:
        """A handler behind the guard."""

        def guard(request: AnyRequest, peer: Peer) -> Response | None:
            refusal = self.refusal(request, peer)
            return handle(request, peer) if refusal is None else refusal

        return guard

    def refusal(self, request: AnyRequest, peer: Peer) -> Response | None:
        """None for a request that may be served."""
        fields = request.fields
        if (
            self._takes_acl
            and SIGNATURE in fields
            and PROOF not in fields
            and request.code in OPERATORS_CODES
            and is_signature_valid(fields, request.body, secret_key=self._key)
        ):
            return None
        known = self._conversations.get(peer)
        if PROOF not in fields:
            return self._refuse(
                peer,
                "this name server takes that only with its registration key; set registrationKey "
                "at the broker, SKYLARK_REGISTRATION_KEY for commands",
            )
        if known is None or not is_proof_valid(
            self._key,
            challenge=known.challenge,
            code=request.code,
            fields=fields,
            body=request.body,
        ):
            # The first proof on a connection is for the challenge of the one before it.
            if known is not None and not known.is_suspect:
                known.is_suspect = True
                logger.warning("code=%d peer=%s has another key", request.code, peer.address)
            return self._refuse(peer, "that is no proof of this name server's registration key")
        counter = fields.get(COUNTER, "")
        is_number = counter.isascii() and counter.isdigit() and len(counter) < 20
        if not is_number or int(counter) >= _COUNTER_MAX or not known.take(int(counter)):
            logger.warning("code=%d peer=%s repeats a proof", request.code, peer.address)
            return self._refuse(peer, "that proof has been used")
        return None

    def connection_lost(self, peer: Peer) -> None:
        """Forget a connection."""
        self._conversations.pop(peer, None)

    def _refuse(self, peer: Peer, remark: str) -> Response:
        known = self._conversations.get(peer)
        if known is None:
            challenge = self._random_bytes(CHALLENGE_BYTES).hex()
            known = self._conversations[peer] = _Conversation(challenge)
        header = headers.RegistrationRefusal(reg_challenge=known.challenge)
        return Response(ResponseCode.NO_PERMISSION, remark, header)
