"""Outbox: requests of a task that are on their way while the next ones are made.

At most one is under way for each place, so that nothing overtakes there, and a place is whatever
the caller takes for one: a queue, or a broker. What did not get through is sent again, after the
answers to all others have come in; so requests must be such that sending them twice does no harm
beyond what the caller has promised.

    # To one broker no more than UNDER_WAY_BYTES are under way, or one request. Its answers name all
    # rows, and a broker that cannot be rid of a megabyte of them reads nothing more.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from functools import partial
from typing import NamedTuple

from ..errors import BrokerError, ConfigError, LocalProtocolError, TransportError
from ..protocol.codes import RequestCode, ResponseCode
from .cluster import TEMPLATE_TOPIC, Cluster
from .offsets import QueueKey
from .wire import Wire

UNDER_WAY_BYTES = 2 << 20
_BATCH_CODES = (RequestCode.SEND_BATCH_MESSAGE, RequestCode.STAGE_ROWS)
# A refusal has one code for all that can be wrong with a message; these words are in what our
# brokers and RocketMQ's say of its delivery time, and of its size.
_OF_TIME = re.compile(r"timer", re.IGNORECASE)
_OF_SIZE = re.compile(r"\b(bytes|length)\b")
_HINT = (
    ". Its maxMessageSize is the limit of a body, and of a whole batch, where a row takes its "
    "body, its properties and 22 bytes: make batchBytes smaller"
)


class Letter(NamedTuple):
    """A request to whoever is the master of a queue's broker."""

    queue: QueueKey
    code: int
    fields: dict[str, str]
    body: bytes


class Outbox:
    """What one task has asked and not been answered yet."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._under_way: dict[Hashable, tuple[Letter, Wire | None]] = {}

    def post(self, place: Hashable, letter: Letter) -> None:
        """Send; waits first for the answer to what is under way for this place."""
        while place in self._under_way or not self._has_room(letter):
            self._settle_oldest()
        wire: Wire | None = None
        try:
            wire = self._cluster.wire(self._address(letter))
            wire.ask(letter.code, letter.fields, letter.body)
        except TransportError as error:
            self._cluster.drop(error.address)
            wire = None  # It has failed, and is sent again when its turn comes.
        except BrokerError:
            pass  # A name server's: likewise.
        except LocalProtocolError as error:
            raise ConfigError(
                f"column body: a row of {len(letter.body)} bytes for {letter.queue} does not fit "
                f"in a request: {error}"
            ) from error
        self._under_way[place] = letter, wire

    def _has_room(self, letter: Letter) -> bool:
        sizes = [
            len(other.body)
            for other, _ in self._under_way.values()
            if other.queue.broker == letter.queue.broker
        ]
        return not sizes or sum(sizes) + len(letter.body) <= UNDER_WAY_BYTES

    def settle(self) -> None:
        """Wait until everything has got through; raises what keeps it from that."""
        while self._under_way:
            self._settle_oldest()

    def _settle_oldest(self) -> None:
        failed = self._take_oldest()
        if failed is None:
            return
        # A connection pairs answers with requests by their order: before anything is asked again,
        # nothing may be under way.
        letters = [failed]
        while self._under_way:
            failed = self._take_oldest()
            if failed is not None:
                letters.append(failed)
        for letter in letters:
            self._cluster.retried(partial(self._call, letter))

    def _take_oldest(self) -> Letter | None:
        """Wait for the oldest answer; the request itself, if it did not get through."""
        letter, wire = self._under_way.pop(next(iter(self._under_way)))
        if wire is None:
            return letter
        try:
            answer = wire.answer()
        except TransportError as error:
            self._cluster.drop(error.address)
            return letter
        return letter if answer.code else None

    def _call(self, letter: Letter) -> None:
        try:
            self._cluster.wire(self._address(letter)).call(letter.code, letter.fields, letter.body)
        except BrokerError as error:
            if error.code != ResponseCode.MESSAGE_ILLEGAL:
                raise
            raise ConfigError(_refusal(letter, error.remark or "")) from error

    def _address(self, letter: Letter) -> str:
        queue, find = letter.queue, self._cluster.broker_address
        try:
            return find(queue.topic, queue.broker, for_writing=True)
        except (ConfigError, TransportError) as error:
            # Who has chosen a queue has seen it: its broker is away, or makes the topic now.
            try:
                return find(TEMPLATE_TOPIC, queue.broker, for_writing=True)
            except ConfigError:
                pass
            except TransportError as second:
                if second.address != queue.broker:
                    raise  # No name server answers.
            raise TransportError(
                queue.broker,
                f"no name server knows it as a broker of topic {queue.topic}. Should it be gone "
                f"for good, `mqadmin deleteKvConfig -s SKYLARK -k queues.{queue.topic}` has the "
                "queues of the topic counted anew, without it",
            ) from error


def _refusal(letter: Letter, remark: str) -> str:
    """What a broker does not take, by the name of the column or option that it is about."""
    queue = letter.queue
    if _OF_TIME.search(remark):
        return f"column deliver_time: broker {queue.broker} refuses it for {queue}: {remark}"
    if not _OF_SIZE.search(remark):
        return f"broker {queue.broker} refuses rows for {queue}: {remark}"
    hint = _HINT if letter.code in _BATCH_CODES else ""
    return f"broker {queue.broker} refuses {len(letter.body)} bytes for {queue}: {remark}{hint}"
