"""Packer: messages of an application, made ready to travel as one producer's settings say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..model.message import Message, Property
from .batching import Pile
from .outgoing import Outgoing, entry_of, join_batch, prepare, prepare_batch
from .producer_config import ProducerConfig
from .session import Session


class Packer:
    """Gives messages their ids and marks, checks and compresses them; raises InvalidMessage."""

    def __init__(self, session: Session, config: ProducerConfig) -> None:
        self._session = session  # Its ids are new once it knows its own address.
        self._config = config
        self._marks: dict[str, str] | None = None
        if session.namespace:
            self._marks = {Property.INSTANCE_ID: session.namespace}

    def one(self, message: Message, topic: str, *, message_id: str | None = None) -> Outgoing:
        """A message on its own; it keeps the id of an earlier try."""
        return self._prepare(message, topic, self._marks, message_id)

    def half(
        self, message: Message, topic: str, marks: Mapping[str, str], message_id: str
    ) -> Outgoing:
        """The first phase of a transactional message."""
        return self._prepare(message, topic, {**(self._marks or {}), **marks}, message_id)

    def request(self, message: Message, topic: str, marks: Mapping[str, str]) -> Outgoing:
        """A message that asks for a reply."""
        return self._prepare(message, topic, {**(self._marks or {}), **marks}, None)

    def reply(self, message: Message, marks: Mapping[str, str]) -> Outgoing:
        """A reply; its topic is the broker's own, outside any namespace."""
        return self._prepare(message, message.topic, marks, None)

    def batch(self, messages: Sequence[Message], topic: str) -> Outgoing:
        """Messages that the caller sends together."""
        return prepare_batch(
            messages,
            topic=topic,
            message_ids=[self._session.unique_ids.next() for _ in messages],
            message_bytes_max=self._config.max_message_size,
            extra_properties=self._marks,
        )

    def entry(self, message: Message, topic: str) -> tuple[str, bytes]:
        """The id of a message that will travel in a pile, and its bytes there."""
        message_id = self._session.unique_ids.next()
        size_max = self._config.max_message_size
        return message_id, entry_of(message, topic, message_id, size_max, self._marks)

    def pile(self, pile: Pile) -> Outgoing:
        """Messages that were sent at about the same time; one alone travels as if on its own."""
        if len(pile.messages) == 1:
            return self.one(pile.messages[0], pile.topic, message_id=pile.message_ids[0])
        size_max = self._config.max_message_size
        return join_batch(pile.messages, pile.topic, pile.message_ids, pile.entries, size_max)

    def _prepare(
        self,
        message: Message,
        topic: str,
        marks: Mapping[str, str] | None,
        message_id: str | None,
    ) -> Outgoing:
        config = self._config
        return prepare(
            message,
            topic=topic,
            message_id=message_id or self._session.unique_ids.next(),
            message_bytes_max=config.max_message_size,
            compress_from_bytes=config.compress_msg_body_over_howmuch,
            compression=config.compression,
            extra_properties=marks,
        )
