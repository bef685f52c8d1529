"""Calls to one broker: one coroutine for each request code.

A call returns what the answer holds as typed values, and raises BrokerError for a code that says
no, TransportError where no answer came. Codes that are part of an ordinary conversation (a message
stored but not yet flushed, a queue without new messages, a group without a committed offset) are
values, not errors.
"""

from ...protocol.bodies import HalfMessage as HalfMessage
from ...protocol.bodies import HalfMessageList as HalfMessageList
from .caller import ADMIN_TIMEOUT_MS as ADMIN_TIMEOUT_MS
from .caller import RELAY_TIMEOUT_MS as RELAY_TIMEOUT_MS
from .finding import QUERY_TIMEOUT_MS as QUERY_TIMEOUT_MS
from .finding import FindCalls
from .finding import QueryAnswer as QueryAnswer
from .groups import GroupCalls
from .membership import LOCK_TIMEOUT_MS as LOCK_TIMEOUT_MS
from .membership import MembershipCalls
from .offsets import OFFSET_TIMEOUT_MS as OFFSET_TIMEOUT_MS
from .offsets import OffsetCalls
from .predicates import PredicateCalls
from .pulling import PULL_STATUS_BY_CODE as PULL_STATUS_BY_CODE
from .pulling import PULL_TIMEOUT_MS as PULL_TIMEOUT_MS
from .pulling import PullAnswer as PullAnswer
from .pulling import PullCalls
from .pulling import PullStatus as PullStatus
from .sending import SEND_BACK_TIMEOUT_MS as SEND_BACK_TIMEOUT_MS
from .sending import SEND_STATUS_BY_CODE as SEND_STATUS_BY_CODE
from .sending import SendAnswer as SendAnswer
from .sending import SendCalls
from .sending import SendStatus as SendStatus
from .sending import send_answer_of as send_answer_of
from .settings import BrokerConfigAnswer as BrokerConfigAnswer
from .settings import SettingsCalls
from .timers import TimerCalls
from .topics import TopicCalls


class RemoteBroker(
    SendCalls,
    PullCalls,
    OffsetCalls,
    MembershipCalls,
    FindCalls,
    TopicCalls,
    GroupCalls,
    SettingsCalls,
    TimerCalls,
    PredicateCalls,
):
    """One broker, by address: every conversation that it takes part in."""
