"""Switchboard: request code → handler; the one place where an exception becomes a response code.

A handler that may wait is a coroutine function; one that may not is a plain function and is
answered at once, in the same write as its neighbours. A handler that returns None is not answered.

    Handler        one request, typed                                   most of them
    RawHandler     one request as it came; may defer its answer         long polls
    BatchHandler   all requests of one read that stand side by side     sends

The last two are for what comes by the hundred thousand. They refuse bad input themselves, with
refusal() for the wording; an exception out of a batch refuses all of it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import BrokerError, SkylarkError, StoreClosed, StoreFull
from ..protocol.codes import ResponseCode
from ..protocol.command import Command
from ..protocol.exchange import Answers, Deferred, Peer, Request, Response
from ..protocol.header import Header

logger = logging.getLogger(__name__)

REMARK_CHARS_MAX = 1024

Later = Coroutine[Any, Any, Response | None]
Handle = Callable[[Any, Peer], Response | Later | None]
RawHandle = Callable[[Command, Peer], Command | bytes | Deferred | None]
BatchHandle = Callable[[list[Command], Peer], Answers | Deferred]


@dataclass(frozen=True, slots=True)
class Handler:
    """How one request code is served: the type of its header, and the function."""

    header: type[Header] | None
    handle: Handle


@dataclass(frozen=True, slots=True)
class RawHandler:
    """How one request code is served that reads its fields itself."""

    handle: RawHandle


@dataclass(frozen=True, slots=True)
class BatchHandler:
    """How a request code is served together with its neighbours; codes may share one.

    Answers nothing for oneway requests.
    """

    handle: BatchHandle


AnyHandler = Handler | RawHandler | BatchHandler


def _ignore(peer: Peer) -> None:
    """Nothing depends on this peer coming or going."""


class Switchboard:
    """Serves requests from a table; knows nothing of sockets."""

    def __init__(
        self,
        handlers: Mapping[int, AnyHandler],
        *,
        on_connect: Callable[[Peer], None] = _ignore,
        on_disconnect: Callable[[Peer], None] = _ignore,
    ) -> None:
        self._handlers: dict[int, Handler] = {}
        self._raw: dict[int, RawHandle] = {}
        # Request code → who serves it in batches.
        self.batches: dict[int, BatchHandle] = {}
        for code, handler in handlers.items():
            if isinstance(handler, BatchHandler):
                self.batches[int(code)] = handler.handle
            elif isinstance(handler, RawHandler):
                self._raw[int(code)] = handler.handle
            else:
                self._handlers[int(code)] = handler
        self.on_connect = on_connect
        self.on_disconnect = on_disconnect

    def begin_batch(self, commands: list[Command], peer: Peer) -> Answers | Deferred:
        """Serve requests that share a batch handler."""
        try:
            return self.batches[commands[0].code](commands, peer)
        except Exception as error:
            return [refusal(command, peer, error) for command in commands if not command.is_oneway]

    def begin(self, command: Command, peer: Peer) -> Command | bytes | Deferred | Later | None:
        """Serve a request: the answer, None where none is due, or a coroutine for finish()."""
        raw = self._raw.get(command.code)
        if raw is not None:
            try:
                return raw(command, peer)
            except Exception as error:
                return refusal(command, peer, error)
        handler = self._handlers.get(command.code)
        if handler is None:
            return command.reply(
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                f"request code {command.code} is not supported here",
            )
        try:
            fields = command.fields
            header = None if handler.header is None else handler.header.from_fields(fields)
            request = Request(
                command.code,
                header,
                command.body,
                command.version,
                command.language,
                fields,
                command.is_oneway,
            )
            outcome = handler.handle(request, peer)
        except Exception as error:
            return refusal(command, peer, error)
        if isinstance(outcome, Response):
            return _answer(command, outcome)
        if outcome is None:
            return None
        return outcome

    async def finish(self, command: Command, peer: Peer, later: Later) -> Command | None:
        """Wait for a handler that may wait; return the answer, or None where none is due."""
        try:
            outcome = await later
        except Exception as error:
            return refusal(command, peer, error)
        return None if outcome is None else _answer(command, outcome)


def _answer(command: Command, response: Response) -> Command:
    header = response.header
    fields = None if header is None else header.to_fields()
    return command.reply(response.code, response.remark, fields, response.body)


def refusal(command: Command, peer: Peer, error: Exception) -> Command:
    """Turn what a handler raised into an answer.

    An AssertionError is our own mistake: nothing that depends on what was asserted can be
    trusted, so it goes up and ends the process rather than let it write on.
    """
    if isinstance(error, AssertionError) or (
        isinstance(error, ExceptionGroup) and error.subgroup(AssertionError) is not None
    ):
        raise error
    code: int = ResponseCode.SYSTEM_ERROR
    remark = str(error)
    if isinstance(error, BrokerError):
        code, remark = error.code, error.remark or ""
    elif isinstance(error, StoreFull | StoreClosed):
        code = ResponseCode.SERVICE_NOT_AVAILABLE
    elif not isinstance(error, SkylarkError):
        logger.exception("code=%d peer=%s failed", command.code, peer.address)
        remark = f"internal error, see the log: {type(error).__name__}"
    return command.reply(code, remark[:REMARK_CHARS_MAX])
