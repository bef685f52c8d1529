"""SendHooks: the hooks of one producer, told of each try to send."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from ..model.queue import MessageQueue
from .hooks import CommunicationMode, ForbiddenHook, SendContext, SendHook
from .outgoing import Outgoing
from .receipts import SendReceipt
from .session import Session

logger = logging.getLogger(__name__)


class SendHooks:
    """Who watches the sends of a producer, and who may refuse them."""

    def __init__(
        self,
        session: Session,
        group: str,
        send: Iterable[SendHook],
        forbidden: Iterable[ForbiddenHook],
    ) -> None:
        self.send = list(send)
        self.forbidden = list(forbidden)
        self._session = session
        self._clock = session.clock
        self._group = group  # As the application knows it.

    def before(
        self, outgoing: Outgoing, queue: MessageQueue, address: str, mode: CommunicationMode
    ) -> SendContext | None:
        if not self.send and not self.forbidden:
            return None
        context = SendContext(
            group=self._group,
            messages=outgoing.messages,
            message_ids=outgoing.message_ids,
            queue=queue,
            broker_address=address,
            mode=mode,
            message_type=outgoing.message_type,
            namespace=self._session.namespace,
            born_at_ms=self._clock.now_ms(),
        )
        for forbidden in self.forbidden:
            forbidden.check_forbidden(context)
        for hook in self.send:
            hook.before_send(context)
        return context

    def after(
        self,
        context: SendContext,
        cost_ms: int,
        receipts: tuple[SendReceipt, ...],
        error: Exception | None,
    ) -> None:
        context.cost_ms = cost_ms
        context.receipts = receipts
        context.error = error
        for hook in self.send:
            try:
                hook.after_send(context)
            except Exception:
                logger.exception("topic=%s a hook failed after a send", context.queue.topic)
