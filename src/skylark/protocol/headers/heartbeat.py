"""Clients and their groups: who is there, who leaves, who else is there.

HEART_BEAT, CHECK_CLIENT_CONFIG and the queue locks carry everything in their bodies.
"""

from __future__ import annotations

from typing import ClassVar

from ..codes import RequestCode
from ..header import Header, header, wire


@header
class UnregisterClientRequest(Header):
    """A client leaves a group. The key is spelled clientID here and clientId everywhere else."""

    CODE: ClassVar[RequestCode] = RequestCode.UNREGISTER_CLIENT

    client_id: str = wire("clientID")
    producer_group: str | None = None
    consumer_group: str | None = None


@header
class GetConsumerListByGroupRequest(Header):
    """Who are the members of a group?"""

    CODE: ClassVar[RequestCode] = RequestCode.GET_CONSUMER_LIST_BY_GROUP

    consumer_group: str


@header
class NotifyConsumerIdsChangedRequest(Header):
    """The broker says that a group's members have changed."""

    CODE: ClassVar[RequestCode] = RequestCode.NOTIFY_CONSUMER_IDS_CHANGED

    consumer_group: str
