"""Returns: messages that a consumer gives back to the broker.

1   CONSUMER_SEND_MSG_BACK to the master that has the message: it comes again after a delay that
    grows with every try, or goes to the dead letters
2   if that fails, a copy is sent to the group's retry topic on any broker
3   if that fails as well, the consumer has to try again by itself
"""

from __future__ import annotations

import logging

from ..errors import BrokerError, NoRoute, TransportError
from ..model.group import INNER_PRODUCER_GROUP
from ..model.message import COMPRESSION_TYPE_MASK, Property, SysFlag
from ..model.queue import MessageQueue
from ..model.topic import AUTO_CREATE_TOPIC, is_retry_topic, retry_topic
from ..protocol import headers
from ..protocol.properties import format_properties
from .received import ReceivedMessage
from .session import Session

logger = logging.getLogger(__name__)

FIRST_DELAY_LEVEL = 3
_KEPT_FLAGS = int(SysFlag.COMPRESSED | SysFlag.MULTI_TAGS) | COMPRESSION_TYPE_MASK


class Returns:
    """Gives messages of one group back."""

    def __init__(self, session: Session, group: str) -> None:
        self._session = session
        self._group = group

    async def give_back(
        self, message: ReceivedMessage, *, delay_level: int, reconsume_times_max: int
    ) -> bool:
        """Have a message delivered again, at level -1 never again; False if nobody took it."""
        try:
            await self._send_back(message, delay_level, reconsume_times_max)
            return True
        except (TransportError, BrokerError, NoRoute) as error:
            logger.warning("message=%s not taken back: %s", message.message_id, error)
        try:
            await self._send_copy(message, delay_level, reconsume_times_max)
            return True
        except (TransportError, BrokerError, NoRoute) as error:
            logger.warning("message=%s no copy for the retry topic: %s", message.message_id, error)
        return False

    async def _send_back(
        self, message: ReceivedMessage, delay_level: int, reconsume_times_max: int
    ) -> None:
        address = self._session.master_address(message.broker_name)
        if address is None:
            raise NoRoute(
                f"no master of {message.broker_name!r} is known", hint="wait until there is one"
            )
        await self._session.broker(address).send_back(
            group=self._group,
            physical_offset=message.record.physical_offset,
            delay_level=delay_level,
            max_reconsume_times=reconsume_times_max,
            origin_msg_id=message.offset_id,
            origin_topic=message.record.topic,
            broker_name=message.broker_name,
        )

    async def _send_copy(
        self, message: ReceivedMessage, delay_level: int, reconsume_times_max: int
    ) -> None:
        queue = await self._retry_queue(avoid=message.broker_name)
        address = self._session.master_address(queue.broker_name)
        if address is None:
            raise NoRoute(f"no master of {queue.broker_name!r} is known", hint="wait for one")
        times = message.reconsume_times + 1
        if delay_level < 0:
            times = reconsume_times_max + 1  # The broker moves such a copy to the dead letters.
        record = message.record
        properties = dict(record.properties)
        properties.pop(Property.TRAN_MSG, None)
        if not is_retry_topic(record.topic):
            properties[Property.RETRY_TOPIC] = record.topic
        properties[Property.ORIGIN_MESSAGE_ID] = message.origin_id
        properties[Property.DELAY] = str(
            delay_level if delay_level > 0 else FIRST_DELAY_LEVEL + message.reconsume_times
        )
        header = headers.SendMessageRequestV2(
            producer_group=INNER_PRODUCER_GROUP,
            topic=queue.topic,
            default_topic=AUTO_CREATE_TOPIC,
            default_topic_queue_nums=4,
            queue_id=queue.queue_id,
            sys_flag=record.sys_flag & _KEPT_FLAGS,
            born_timestamp=self._session.clock.now_ms(),
            flag=record.flag,
            properties=format_properties(properties, as_read=True),
            reconsume_times=times,
            unit_mode=False,
            max_reconsume_times=reconsume_times_max,
            batch=False,
            broker_name=queue.broker_name,
        )
        await self._session.broker(address).send(header, record.body)

    async def _retry_queue(self, avoid: str) -> MessageQueue:
        queues = await self._session.read_queues(retry_topic(self._group))
        if not queues:
            raise NoRoute(
                f"the retry topic of {self._group!r} has no queues", hint="check its permissions"
            )
        elsewhere = [queue for queue in queues if queue.broker_name != avoid]
        return self._session.rng.choice(elsewhere or queues)
