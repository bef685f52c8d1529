"""What operators ask of the broker's settings and files.

A setting is changed only if it is on the allow-list (`remote` in BrokerConfig): typed, within its
range, and none of them a path, a command, a class or an address. Paths and secrets are never shown.
"""

from __future__ import annotations

import logging
import os

from ....config import config_text, merge_properties, update_from_text
from ....errors import BrokerError, SettingRefused, StoreError
from ....model.topic import UNSENDABLE_TOPICS
from ....model.version import DataVersion
from ....protocol.bodies import DataVersionBody
from ....protocol.codes import ResponseCode
from ....protocol.exchange import AnyRequest, Peer, Response
from ....protocol.headers import GetBrokerConfigResponse
from ...parts import Parts

logger = logging.getLogger(__name__)


class SettingsAdmin:
    """Shows and changes settings, and lets files go before their time."""

    def __init__(self, parts: Parts) -> None:
        self._live = parts.live
        self._files = parts.files
        self._clock = parts.clock
        self._retention = parts.retention
        self._archived = parts.archived
        self._on_config = parts.on_config
        self._version = DataVersion(parts.booted_at_ms, 0)

    def get(self, request: AnyRequest, peer: Peer) -> Response:
        """Serve GET_BROKER_CONFIG."""
        version = DataVersionBody(self._version).to_json().decode()
        config = self._live.current
        # mqadmin's export takes these for granted: there is no filter server, and TLS has a mode.
        uses_tls = "true" if config.tls_cert_path else "false"
        text = f"{config_text(config)}filterServerNums=0\nuseTLS={uses_tls}\n"
        return Response(header=GetBrokerConfigResponse(version=version), body=text.encode())

    def update(self, request: AnyRequest, peer: Peer) -> Response:
        """Serve UPDATE_BROKER_CONFIG: all of it or nothing, and written before it counts."""
        try:
            text = bytes(request.body).decode()
        except UnicodeDecodeError:
            raise BrokerError(
                ResponseCode.SYSTEM_ERROR, "the settings are not UTF-8 text"
            ) from None
        try:
            update = update_from_text(self._live.current, text)
        except SettingRefused as error:
            raise BrokerError(ResponseCode.NO_PERMISSION, str(error)) from None
        if not update.changes:
            return Response()
        self._write({key: new for key, (_, new) in update.changes.items()})
        self._live.current = update.config
        self._version = self._version.next(self._clock.now_ms())
        self._on_config(update.config)
        for key, (old, new) in update.changes.items():
            logger.info("setting=%s old=%s new=%s by peer=%s", key, old, new, peer.address)
        return Response()

    def _write(self, changes: dict[str, str]) -> None:
        path = self._live.current.broker_config_path
        if not path:
            logger.warning(
                "settings changed until the next start: brokerConfigPath names no file to keep them"
            )
            return
        path = os.path.expanduser(path)
        try:
            self._files.make_directory(os.path.dirname(path) or ".")
            text = self._files.read(path).decode() if self._files.exists(path) else ""
            self._files.replace(path, merge_properties(text, changes).encode())
        except (StoreError, UnicodeDecodeError) as error:
            # The error names a file, which is for the operator's log and not for whoever asked.
            logger.error("settings not changed, because they cannot be written: %s", error)
            raise BrokerError(
                ResponseCode.SYSTEM_ERROR,
                "the change cannot be written and was not made; see the log",
            ) from error

    # Files.

    def clean_queues(self, request: AnyRequest, peer: Peer) -> Response:
        """Serve CLEAN_EXPIRED_CONSUMEQUEUE.

        Queues of the broker's own stay: it remembers offsets in them, which must not begin anew. So
        do archives.
        """
        kept = UNSENDABLE_TOPICS | self._archived.topics()
        count = self._retention.remove_expired_queues(keep=kept.__contains__)
        logger.info("%d expired queues removed for peer=%s", count, peer.address)
        return Response()

    def clean_log(self, request: AnyRequest, peer: Peer) -> Response:
        """Serve DELETE_EXPIRED_COMMITLOG: expired files go now, whatever the hour."""
        self._retention.clean_soon()
        logger.info("expired files are removed at the wish of peer=%s", peer.address)
        return Response()
