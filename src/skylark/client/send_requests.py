"""SendRequests: messages as send requests, and their answers as receipts."""

from __future__ import annotations

from ..clock import Clock
from ..errors import BrokerError
from ..model.message import Message
from ..model.queue import MessageQueue
from ..protocol.codes import RequestCode, ResponseCode
from ..protocol.command import Command
from ..remote.broker import SEND_STATUS_BY_CODE
from .outgoing import Outgoing
from .producer_config import ProducerConfig
from .receipts import SendReceipt


class SendRequests:
    """Writes the send requests of one producer."""

    def __init__(self, group: str, config: ProducerConfig, clock: Clock) -> None:
        self._group = group
        self._config = config
        self._clock = clock

    def command(
        self,
        outgoing: Outgoing,
        queue: MessageQueue,
        *,
        oneway: bool = False,
        is_reply: bool = False,
    ) -> Command:
        if is_reply:
            code = RequestCode.SEND_REPLY_MESSAGE_V2
        elif outgoing.is_batch:
            code = RequestCode.SEND_BATCH_MESSAGE
        else:
            code = RequestCode.SEND_MESSAGE_V2
        fields = self.fields(outgoing.topic, queue)
        fields["f"] = str(outgoing.sys_flag)
        fields["g"] = str(self._clock.now_ms())
        fields["h"] = str(outgoing.flag)
        fields["i"] = outgoing.properties
        if outgoing.is_batch:
            fields["m"] = "true"
        return Command(int(code), 0, 2 if oneway else 0, fields, outgoing.body)

    def fields(self, topic: str, queue: MessageQueue) -> dict[str, str]:
        """The send header as SendMessageRequestV2 writes it, but for what each message adds."""
        return {
            "a": self._group,
            "b": topic,
            "c": self._config.create_topic_key,
            "d": str(self._config.default_topic_queue_nums),
            "e": str(queue.queue_id),
            "f": "0",
            "g": "0",
            "h": "0",
            "i": "",
            "j": "0",
            "k": "false",
            "m": "false",
            "n": queue.broker_name,
        }


def receipts_of(
    outgoing: Outgoing, queue: MessageQueue, answer: Command, address: str
) -> tuple[SendReceipt, ...]:
    message_ids = outgoing.message_ids
    first = receipt_of(answer, outgoing.messages[0], message_ids[0], queue, address)
    if not outgoing.is_batch:
        return (first,)
    status, _, joined_ids, queue, queue_offset, transaction_id, region, trace_on = first
    offset_ids = joined_ids.split(",")
    if len(offset_ids) != len(message_ids):
        offset_ids = [joined_ids] * len(message_ids)
    return tuple(
        SendReceipt(
            status,
            message_id,
            offset_id,
            queue,
            queue_offset + step,
            transaction_id,
            region,
            trace_on,
        )
        for step, (message_id, offset_id) in enumerate(zip(message_ids, offset_ids, strict=True))
    )


def receipt_of(
    answer: Command, message: Message, message_id: str, queue: MessageQueue, address: str
) -> SendReceipt:
    """What an answer says of a message, or of the first of a batch; raises BrokerError."""
    status = SEND_STATUS_BY_CODE.get(answer.code)
    if status is None:
        raise BrokerError(answer.code, answer.remark, address)
    fields = answer.fields
    try:
        queue_id, queue_offset = int(fields["queueId"]), int(fields["queueOffset"])
    except (KeyError, ValueError):
        problem = "it says the message is stored, and not where"
        raise BrokerError(ResponseCode.SYSTEM_ERROR, problem, address) from None
    topic = message.topic
    if queue.queue_id != queue_id or queue.topic != topic:
        # The queue as the application names it; the broker may have picked another one.
        queue = MessageQueue(topic, queue.broker_name, queue_id)
    return SendReceipt(
        status,
        message_id,
        fields.get("msgId", ""),
        queue,
        queue_offset,
        fields.get("transactionId"),
        fields.get("MSG_REGION"),
        fields.get("TRACE_ON") == "true",
    )
