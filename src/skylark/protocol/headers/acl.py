"""Access control: accounts, their rights, and addresses that need none.

Rights are written as `PUB`, `SUB`, `PUB|SUB` or `DENY`; those of topics and groups as comma lists
of `name=right`.
"""

from __future__ import annotations

from typing import ClassVar

from ..codes import RequestCode
from ..header import Header, header


@header
class CreateAccessConfigRequest(Header):
    """Create an account, or change one."""

    CODE: ClassVar[RequestCode] = RequestCode.UPDATE_AND_CREATE_ACL_CONFIG

    access_key: str
    secret_key: str
    white_remote_address: str | None = None
    admin: bool = False
    default_topic_perm: str | None = None
    default_group_perm: str | None = None
    topic_perms: str | None = None
    group_perms: str | None = None


@header
class DeleteAccessConfigRequest(Header):
    """Delete an account."""

    CODE: ClassVar[RequestCode] = RequestCode.DELETE_ACL_CONFIG

    access_key: str


@header
class GetBrokerAclConfigResponse(Header):
    """Which version of its accounts a broker has; both versions are JSON."""

    version: str
    all_acl_file_version: str | None = None
    broker_name: str
    broker_addr: str
    cluster_name: str


@header
class UpdateGlobalWhiteAddrsRequest(Header):
    """Set the addresses that need no account."""

    CODE: ClassVar[RequestCode] = RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG

    global_white_addrs: str
    acl_file_full_path: str | None = None
