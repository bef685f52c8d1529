"""Calls about the broker itself: settings, figures, cleaning, copies of tables, accounts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ...model.version import DataVersion
from ...protocol import headers
from ...protocol.bodies import (
    BrokerStatsDataBody,
    ConsumerOffsetTable,
    DataVersionBody,
    DelayOffsetTable,
    KVTable,
    format_properties,
    parse_properties,
)
from ...protocol.codes import RequestCode
from .caller import ADMIN_TIMEOUT_MS, BrokerCaller


@dataclass(frozen=True, slots=True)
class BrokerConfigAnswer:
    """A broker's settings and their version."""

    settings: Mapping[str, str]
    version: DataVersion


class SettingsCalls(BrokerCaller):
    """Looks after the broker."""

    # The broker itself.

    async def get_config(self, *, timeout_ms: int = ADMIN_TIMEOUT_MS) -> BrokerConfigAnswer:
        """All settings."""
        answer = await self._call(RequestCode.GET_BROKER_CONFIG, timeout_ms=timeout_ms)
        found = headers.GetBrokerConfigResponse.from_fields(answer.fields)
        version = DataVersionBody.from_json(found.version.encode()).version
        return BrokerConfigAnswer(parse_properties(answer.body), version)

    async def update_config(
        self, settings: Mapping[str, str], *, timeout_ms: int = ADMIN_TIMEOUT_MS
    ) -> None:
        """Change some settings."""
        body = format_properties(settings)
        await self._call(RequestCode.UPDATE_BROKER_CONFIG, body=body, timeout_ms=timeout_ms)

    async def get_runtime_info(self, *, timeout_ms: int = ADMIN_TIMEOUT_MS) -> Mapping[str, str]:
        """Figures about the running broker, under RocketMQ's names."""
        answer = await self._call(RequestCode.GET_BROKER_RUNTIME_INFO, timeout_ms=timeout_ms)
        return KVTable.from_json(answer.body).table

    async def get_stats(
        self, name: str, key: str, *, timeout_ms: int = ADMIN_TIMEOUT_MS
    ) -> BrokerStatsDataBody:
        """One counter over the last minute, hour and day; BrokerError where it has no entry."""
        header = headers.ViewBrokerStatsDataRequest(stats_name=name, stats_key=key)
        answer = await self._call(RequestCode.VIEW_BROKER_STATS_DATA, header, timeout_ms=timeout_ms)
        return BrokerStatsDataBody.from_json(answer.body)

    async def clean_expired_consume_queues(self, *, timeout_ms: int = ADMIN_TIMEOUT_MS) -> None:
        """Delete consume queue files that point at nothing any more."""
        await self._call(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, timeout_ms=timeout_ms)

    async def clean_unused_topics(self, *, timeout_ms: int = ADMIN_TIMEOUT_MS) -> None:
        """Delete the queues of topics that do not exist any more."""
        await self._call(RequestCode.CLEAN_UNUSED_TOPIC, timeout_ms=timeout_ms)

    async def delete_expired_commit_log(self, *, timeout_ms: int = ADMIN_TIMEOUT_MS) -> None:
        """Delete commit log files beyond their time, now."""
        await self._call(RequestCode.DELETE_EXPIRED_COMMITLOG, timeout_ms=timeout_ms)

    async def resume_check_half_message(
        self, offset_id: str, *, timeout_ms: int = ADMIN_TIMEOUT_MS
    ) -> None:
        """Ask about a half message again that the broker had given up on."""
        header = headers.ResumeCheckHalfMessageRequest(msg_id=offset_id)
        await self._call(RequestCode.RESUME_CHECK_HALF_MESSAGE, header, timeout_ms=timeout_ms)

    # What a replica copies beside the log.

    async def get_all_consumer_offsets(
        self, *, timeout_ms: int = ADMIN_TIMEOUT_MS
    ) -> ConsumerOffsetTable:
        """What all groups have committed."""
        answer = await self._call(RequestCode.GET_ALL_CONSUMER_OFFSET, timeout_ms=timeout_ms)
        return ConsumerOffsetTable.from_json(answer.body)

    async def get_all_delay_offsets(
        self, *, timeout_ms: int = ADMIN_TIMEOUT_MS
    ) -> DelayOffsetTable:
        """How far the delivery of each delay level has come."""
        answer = await self._call(RequestCode.GET_ALL_DELAY_OFFSET, timeout_ms=timeout_ms)
        return DelayOffsetTable.from_json(answer.body)

    # Access control.

    async def put_account(
        self, header: headers.CreateAccessConfigRequest, *, timeout_ms: int = ADMIN_TIMEOUT_MS
    ) -> None:
        """Create an account, or change one."""
        code = RequestCode.UPDATE_AND_CREATE_ACL_CONFIG
        await self._call(code, header, timeout_ms=timeout_ms)

    async def delete_account(self, access_key: str, *, timeout_ms: int = ADMIN_TIMEOUT_MS) -> None:
        """Delete an account."""
        header = headers.DeleteAccessConfigRequest(access_key=access_key)
        await self._call(RequestCode.DELETE_ACL_CONFIG, header, timeout_ms=timeout_ms)

    async def get_acl_version(
        self, *, timeout_ms: int = ADMIN_TIMEOUT_MS
    ) -> headers.GetBrokerAclConfigResponse:
        """Which version of its accounts the broker has."""
        answer = await self._call(RequestCode.GET_BROKER_CLUSTER_ACL_INFO, timeout_ms=timeout_ms)
        return headers.GetBrokerAclConfigResponse.from_fields(answer.fields)

    async def update_global_white_addresses(
        self,
        addresses: Iterable[str],
        *,
        acl_file: str | None = None,
        timeout_ms: int = ADMIN_TIMEOUT_MS,
    ) -> None:
        """Set the addresses that need no account."""
        header = headers.UpdateGlobalWhiteAddrsRequest(
            global_white_addrs=",".join(addresses), acl_file_full_path=acl_file
        )
        code = RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG
        await self._call(code, header, timeout_ms=timeout_ms)
