"""KVConfig: settings that operators share through the name server.

    namespace             key     value                        read by
    ORDER_TOPIC_CONFIG    topic   `brokerName:queueNums;...`   brokers and, where enabled, clients
    any other             any     any                          whoever put it there

The file is RocketMQ's own, one line of JSON: `{"configTable":{"namespace":{"key":"value"}}}`. Each
change replaces it whole and is on the disk before it is answered; the content before stays beside
it as `.bak`. A change that cannot be written is not made: RocketMQ would answer success and forget
it at the next start.
"""

from __future__ import annotations

import logging
import os
from typing import Protocol, Self

from ..errors import BrokerError, CorruptRecord, InvalidBody
from ..protocol.bodies import KVConfigTable
from ..protocol.codes import ResponseCode

logger = logging.getLogger(__name__)

ORDER_TOPIC_CONFIG = "ORDER_TOPIC_CONFIG"
FILE_BYTES_MAX = 8 * 1024 * 1024  # Half a frame: the largest namespace must fit an answer.


class SmallFiles(Protocol):
    """What is asked of the disk; skylark.store's Files does it."""

    def exists(self, path: str) -> bool: ...
    def read(self, path: str) -> bytes: ...
    def replace(self, path: str, content: bytes) -> None: ...
    def make_directory(self, path: str) -> None: ...


class KVConfig:
    """The table and its file, which never disagree."""

    def __init__(self, path: str, files: SmallFiles) -> None:
        self._path = path
        self._files = files
        self._table: dict[str, dict[str, str]] = {}

    @classmethod
    def load(cls, path: str, files: SmallFiles) -> Self:
        """Read the file, or its backup; raises StoreError if neither can be used."""
        kv = cls(path, files)
        files.make_directory(os.path.dirname(path) or ".")
        problems = []
        for candidate in (path, f"{path}.bak"):
            if not files.exists(candidate):
                continue
            content = files.read(candidate)
            try:
                # Java reads an empty file as one without settings.
                table = KVConfigTable.from_json(content) if content.strip() else KVConfigTable()
            except InvalidBody as error:
                problems.append(f"{candidate}: {error}")
                continue
            if candidate != path:
                logger.warning("kvConfig=%s cannot be used, read %s instead", path, candidate)
            kv._table = {name: dict(members) for name, members in table.namespaces.items()}
            return kv
        if problems:
            raise CorruptRecord(
                f"the settings cannot be read: {'; '.join(problems)}; "
                "restore the file from a backup, or remove both to start with none"
            )
        return kv

    def get(self, namespace: str, key: str) -> str | None:
        """One value, or None."""
        return self._table.get(namespace, {}).get(key)

    def namespace(self, namespace: str) -> dict[str, str] | None:
        """All of a namespace, or None where nothing was ever put there."""
        members = self._table.get(namespace)
        return None if members is None else dict(members)

    def put(self, namespace: str, key: str, value: str) -> None:
        """Keep a value; it is durable when this returns."""
        if self.get(namespace, key) == value:
            return
        changed = dict(self._table)
        changed[namespace] = {**self._table.get(namespace, {}), key: value}
        self._write(changed)

    def delete(self, namespace: str, key: str) -> None:
        """Forget a value; absent is fine. A namespace stays when its last value goes."""
        if self.get(namespace, key) is None:
            return
        changed = dict(self._table)
        changed[namespace] = {k: v for k, v in self._table[namespace].items() if k != key}
        self._write(changed)

    def _write(self, table: dict[str, dict[str, str]]) -> None:
        content = KVConfigTable(table).to_json()
        if len(content) > FILE_BYTES_MAX:
            raise BrokerError(
                ResponseCode.SYSTEM_ERROR,
                f"the settings would take {len(content)} bytes, {FILE_BYTES_MAX} are allowed; "
                "delete some first",
            )
        self._files.replace(self._path, content)
        self._table = table
