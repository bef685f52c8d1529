"""Dead letters: what a group has given up on, and giving it another chance.

A letter that is sent again goes to the group's retry topic, so that this group sees it once more
and no other does. It stays where it is as well: dead letters expire with the log, and are never
removed one by one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

from ..client.second_chance import try_again
from ..errors import ClientError, NoRoute
from ..model.message import Property, StoredMessage
from ..model.topic import dlq_topic
from .reach import Reach

_READER_GROUP = "skylark-dead-letters"


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that a group has given up on."""

    group: str
    broker: str
    queue_id: int
    message: StoredMessage

    @property
    def id(self) -> str:
        """The id that the producer gave it, or else its place."""
        return self.message.unique_id or self.message.offset_id

    @property
    def origin(self) -> str:
        """The topic it was sent to."""
        return self.message.properties.get(Property.RETRY_TOPIC, "")


class DeadLetterActions(Reach):
    """What an AdminClient can do with dead letters."""

    async def dead_letters(self, group: str) -> AsyncIterator[DeadLetter]:
        """All dead letters of a group, queue by queue, oldest first."""
        topic = dlq_topic(group)
        try:
            queues = await self._client.fetch_queues(topic)
        except NoRoute:
            return
        async with self._client.pull_consumer(_READER_GROUP) as reader:
            for queue in queues:
                offset = await reader.min_offset(queue)
                end = await reader.max_offset(queue)
                while offset < end:
                    found = await reader.pull(queue, offset=offset)
                    for message in found.messages:
                        yield DeadLetter(group, queue.broker_name, queue.queue_id, message.record)
                    if found.next_begin_offset <= offset:
                        break
                    offset = found.next_begin_offset

    async def resend_dead_letter(self, letter: DeadLetter) -> None:
        """Let the group have a message once more, from its first try on."""
        if not letter.origin:
            raise ClientError(
                f"dead letter {letter.id} does not say which topic it was sent to",
                hint="send its body again as a new message",
            )
        await try_again(self._client.session, letter.group, letter.message, letter.broker)
