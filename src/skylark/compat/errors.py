"""Java's exceptions, and which of ours become which.

    ours                         Java's
    TransportError               RemotingException
    BrokerError, SendFailed…     MQBrokerException where a broker answered with a code
    RequestTimedOut              RequestTimeoutException
    any other SkylarkError       MQClientException

The original stays reachable as __cause__.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from ..errors import BrokerError, ClientError, RequestTimedOut, SkylarkError, TransportError

_P = ParamSpec("_P")
_T = TypeVar("_T")


class MQClientException(SkylarkError):
    """Something could not be done on this side."""

    def __init__(self, message: str, response_code: int = -1) -> None:
        super().__init__(message)
        self._message = message
        self._response_code = response_code

    def getErrorMessage(self) -> str:
        """What went wrong."""
        return self._message

    def getResponseCode(self) -> int:
        """The broker's code, or -1."""
        return self._response_code


class MQBrokerException(SkylarkError):
    """A broker answered with a code other than success."""

    def __init__(self, response_code: int, message: str, broker_address: str | None = None) -> None:
        super().__init__(f"CODE: {response_code}  DESC: {message}")
        self._response_code = response_code
        self._message = message
        self._broker_address = broker_address

    def getResponseCode(self) -> int:
        """The broker's code."""
        return self._response_code

    def getErrorMessage(self) -> str:
        """The broker's words."""
        return self._message

    def getBrokerAddr(self) -> str | None:
        """Which broker."""
        return self._broker_address


class RemotingException(SkylarkError):
    """A server could not be reached, was lost, or kept silent."""


class RequestTimeoutException(MQClientException):
    """No reply came in time."""


class InterruptedException(SkylarkError):
    """The thread was told to stop; nothing raises it here, programs that catch it may stay."""


def translated(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Have a method raise Java's exceptions."""

    @functools.wraps(function)
    def call(*arguments: _P.args, **named: _P.kwargs) -> _T:
        try:
            return function(*arguments, **named)
        except SkylarkError as error:
            raise java_exception(error) from error

    return call


def java_exception(error: SkylarkError) -> SkylarkError:
    """The exception that Java would have raised."""
    if isinstance(error, MQClientException | MQBrokerException | RemotingException):
        return error
    if isinstance(error, RequestTimedOut):
        return RequestTimeoutException(str(error))
    if isinstance(error, BrokerError):
        return MQBrokerException(error.code, error.remark or "", error.address)
    if isinstance(error, TransportError):
        return RemotingException(str(error))
    if isinstance(error, ClientError) and error.code is not None and error.broker is not None:
        return MQBrokerException(error.code, str(error), error.broker)
    code = error.code if isinstance(error, ClientError) and error.code is not None else -1
    return MQClientException(str(error), code)
