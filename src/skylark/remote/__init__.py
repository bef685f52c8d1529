"""Typed calls to servers: one coroutine for each request code."""

from ..protocol.registration_proof import RegistrationKey as RegistrationKey
from .broker import BrokerConfigAnswer as BrokerConfigAnswer
from .broker import PullAnswer as PullAnswer
from .broker import PullStatus as PullStatus
from .broker import QueryAnswer as QueryAnswer
from .broker import RemoteBroker as RemoteBroker
from .broker import SendAnswer as SendAnswer
from .broker import SendStatus as SendStatus
from .broker import send_answer_of as send_answer_of
from .name_server import CALL_TIMEOUT_MS as CALL_TIMEOUT_MS
from .name_server import REGISTER_TIMEOUT_MS as REGISTER_TIMEOUT_MS
from .name_server import NameServers as NameServers
from .name_server import RemoteNameServer as RemoteNameServer
