"""A second chance: a message that a group has given up on goes to it once more.

It goes to the group's retry topic, at once and as if it had never been tried, so that this group
sees it and no other does.
"""

from __future__ import annotations

from ..errors import NoRoute
from ..model.message import COMPRESSION_TYPE_MASK, Property, StoredMessage, SysFlag
from ..model.topic import AUTO_CREATE_TOPIC, retry_topic
from ..protocol import headers
from ..protocol.properties import format_properties
from .session import Session

_PRODUCER_GROUP = "skylark-second-chance"
_KEPT_FLAGS = int(SysFlag.COMPRESSED | SysFlag.MULTI_TAGS) | COMPRESSION_TYPE_MASK
# Of the tries before; the next one is the first again.
_SPENT = (
    Property.DELAY,
    Property.TRAN_MSG,
    Property.RECONSUME_TIME,
    Property.MAX_RECONSUME_TIMES,
)


async def try_again(session: Session, group: str, record: StoredMessage, broker: str) -> None:
    """Send a record to the retry topic of a group, at its own broker where that has one."""
    queues = await session.read_queues(retry_topic(group))
    places = [queue for queue in queues if queue.broker_name == broker] or list(queues)
    if not places:
        raise NoRoute(
            f"group {group} has no retry topic", hint="start a consumer of it, which makes it"
        )
    queue = places[0]
    address = session.master_address(queue.broker_name)
    if address is None:
        raise NoRoute(f"no master of {queue.broker_name!r} is known", hint="wait for one")
    properties = {name: value for name, value in record.properties.items() if name not in _SPENT}
    header = headers.SendMessageRequestV2(
        producer_group=_PRODUCER_GROUP,
        topic=queue.topic,
        default_topic=AUTO_CREATE_TOPIC,
        default_topic_queue_nums=4,
        queue_id=queue.queue_id,
        sys_flag=record.sys_flag & _KEPT_FLAGS,
        born_timestamp=session.clock.now_ms(),
        flag=record.flag,
        properties=format_properties(properties, as_read=True),
        reconsume_times=0,
        unit_mode=False,
        batch=False,
        broker_name=queue.broker_name,
    )
    await session.broker(address).send(header, record.body)
