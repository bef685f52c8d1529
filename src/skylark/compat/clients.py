"""What all of Java's clients share: ClientConfig, one life, and connections in common.

Clients with the same settings share one instance of everything below them, as MQClientInstance does
in Java: the first start opens it, the last shutdown closes it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, ClassVar, Self, TypeVar

from ..client.facade import Client as _AsyncClient
from ..client.group_consumer import State
from ..sync import Client as _SyncClient
from ..sync import connect
from .beans import Bean
from .errors import MQClientException, translated
from .hooks import RPCHook, hook_options

_T = TypeVar("_T")

ServiceState = State


class ClientConfig(Bean):
    """Settings that producers and consumers have in common."""

    SETTINGS: ClassVar[dict[str, Any]] = {
        "namesrvAddr": None,
        "clientIP": None,
        "instanceName": "DEFAULT",
        "unitName": None,
        "namespace": None,
        "clientCallbackExecutorThreads": os.cpu_count() or 1,
        "pollNameServerInterval": 30_000,
        "heartbeatBrokerInterval": 30_000,
        "persistConsumerOffsetInterval": 5_000,
        "mqClientApiTimeout": 3_000,
        "vipChannelEnabled": False,
        "useTLS": False,
        "accessKey": None,
        "secretKey": None,
        "rpcHook": None,
    }

    def _connect_options(self) -> dict[str, Any]:
        values = self._values
        return {
            "namesrv_addr": values["namesrvAddr"],
            "client_ip": values["clientIP"],
            "instance_name": values["instanceName"],
            "unit_name": values["unitName"],
            "namespace": values["namespace"],
            "poll_name_server_interval_ms": values["pollNameServerInterval"],
            "heartbeat_broker_interval_ms": values["heartbeatBrokerInterval"],
            "persist_consumer_offset_interval_ms": values["persistConsumerOffsetInterval"],
            "api_timeout_ms": values["mqClientApiTimeout"],
            "vip_channel_enabled": values["vipChannelEnabled"],
            "tls": values["useTLS"],
            "access_key": values["accessKey"],
            "secret_key": values["secretKey"],
            **hook_options(values["rpcHook"]),
        }


class Instance:
    """A client that several producers and consumers share."""

    _by_options: ClassVar[dict[tuple[tuple[str, Any], ...], Instance]] = {}
    _lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, key: tuple[tuple[str, Any], ...]) -> None:
        self._key = key
        self._users = 0
        self.client: _SyncClient = connect(**dict(key))

    @classmethod
    def acquire(cls, options: dict[str, Any]) -> Instance:
        """The instance for these settings, opened if nobody uses it yet."""
        key = tuple(sorted(options.items(), key=lambda item: item[0]))
        with cls._lock:
            instance = cls._by_options.get(key)
            if instance is None:
                instance = cls(key)
                instance.client.open()
                cls._by_options[key] = instance
            instance._users += 1
            return instance

    def release(self) -> None:
        """One user less; the last one closes it."""
        with self._lock:
            self._users -= 1
            if self._users:
                return
            del self._by_options[self._key]
        self.client.close()

    def run(self, make: Callable[[_AsyncClient], Coroutine[Any, Any, _T]]) -> _T:
        """Run something on the thread of the client, and wait for it."""
        runtime = self.client._current()
        return runtime.call(make(runtime.client))


class MQAdmin(ClientConfig):
    """A client that is started and shut down, and answers questions about messages and queues."""

    _kind: ClassVar[str]

    def __init__(self, rpcHook: RPCHook | None = None) -> None:
        super().__init__()
        self._values["rpcHook"] = rpcHook
        self._state = State.CREATE_JUST
        self._instance: Instance | None = None

    @translated
    def start(self) -> None:
        """Begin; raises MQClientException when it was begun before."""
        if self._state is State.START_FAILED:
            raise MQClientException(
                f"The Factory object[{type(self).__name__}] has been created before, and failed."
            )
        if self._state is not State.CREATE_JUST:
            raise MQClientException(
                f"The {self._kind} service state not OK, maybe started once, {self._state.value}"
            )
        try:
            self._instance = Instance.acquire(self._connect_options())
            try:
                self._begin(self._instance)
            except BaseException:
                self._instance.release()
                raise
        except BaseException:
            self._state = State.START_FAILED
            raise
        self._state = State.RUNNING

    @translated
    def shutdown(self) -> None:
        """End; a second time is harmless."""
        if self._state is not State.RUNNING:
            return
        self._state = State.SHUTDOWN_ALREADY
        instance = self._running_instance
        try:
            self._end(instance)
        finally:
            instance.release()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.shutdown()

    def _begin(self, instance: Instance) -> None:
        raise NotImplementedError

    def _end(self, instance: Instance) -> None:
        raise NotImplementedError

    def buildMQClientId(self) -> str:
        """Who this client is to brokers; what is left open is known when it runs."""
        if self._state is State.RUNNING:
            return self._running_instance.client.client_id
        values = self._values
        unit = f"@{values['unitName']}" if values["unitName"] else ""
        return f"{values['clientIP'] or ''}@{values['instanceName']}{unit}"

    def getServiceState(self) -> State:
        return self._state

    @property
    def _running_instance(self) -> Instance:
        assert self._instance is not None
        return self._instance

    def _require_running(self) -> Instance:
        if self._state is not State.RUNNING:
            raise MQClientException(
                f"The {self._kind} service state not OK, {self._state.value}: call start() first"
            )
        return self._running_instance
