"""Express: the short way of an ordinary message to a broker that is connected already."""

from __future__ import annotations

import asyncio
from typing import Final

from ..model.message import Message
from ..model.queue import MessageQueue
from ..protocol.codes import RequestCode
from ..protocol.command import Command
from .destinations import Destinations
from .outgoing import check_topic, properties_text
from .pipelining import PipelinedLink
from .producer_config import ProducerConfig
from .send_hooks import SendHooks
from .send_requests import SendRequests
from .session import Session

_SEND_CODE: Final = int(RequestCode.SEND_MESSAGE_V2)

Begun = tuple[PipelinedLink, Command, asyncio.Future[Command], int, MessageQueue, str]
"""The link, the request, its answer to come, when it began, the queue and the message's id."""


class Express:
    """Begins the first try of a message without a detour, where nothing asks for one."""

    def __init__(
        self,
        session: Session,
        config: ProducerConfig,
        destinations: Destinations,
        requests: SendRequests,
        hooks: SendHooks,
    ) -> None:
        self._session = session
        self._clock = session.clock
        self._destinations = destinations
        self._requests = requests
        self._hooks = hooks
        # Larger bodies are checked or compressed; names and marks of a namespace need work too,
        # and so does the table of slow brokers.
        self._body_bytes_max = 0
        is_plain = not session.namespace and not session.config.vip_channel_enabled
        if is_plain and not config.send_latency_fault_enable:
            self._body_bytes_max = min(
                config.compress_msg_body_over_howmuch, config.max_message_size + 1
            )

    def begin(self, message: Message, budget_ms: int) -> Begun | None:
        """Begin the first try of an ordinary message at once; None if anything is in its way.

        What Delivery would do, without its detours: most messages go this way, and all others,
        and all further tries, the long one.
        """
        topic = message.topic
        info = self._destinations.infos.get(topic)
        if (
            info is None
            or info.is_borrowed
            or info.route is not self._session.routes.known(topic)
            or not 0 < len(message.body) < self._body_bytes_max
            or self._hooks.send
            or self._hooks.forbidden
        ):
            return None
        check_topic(topic)
        queue = info.next()
        link = self._session.channels.ready_link(info.addresses.get(queue.broker_name, ""))
        if link is None:
            info.give_back()
            return None
        message_id = self._session.unique_ids.next()
        fields = info.headers.get(queue)
        if fields is None:
            fields = info.headers[queue] = self._requests.fields(topic, queue)
        fields = fields.copy()
        fields["g"] = str(self._clock.now_ms())
        if message.flag:
            fields["h"] = str(message.flag)
        fields["i"] = properties_text(message, message_id)
        command = Command(_SEND_CODE, 0, 0, fields, message.body)
        began_ms = self._clock.monotonic_ms()
        answer = link.submit(command, budget_ms)
        return link, command, answer, began_ms, queue, message_id
