"""Settings of a client from outside of its code.

    rising precedence   spelling
    file                RocketMQ's `key=value` properties, or the table [client] of a TOML file
    environment         SKYLARK_CLIENT_INSTANCE_NAME; SKYLARK_CLIENT_CONFIG names the file
    code                connect(instance_name=...)

A key may be ours (instance_name, instanceName) or that of Java's ClientConfig (clientIP,
pollNameServerInterval). A file often serves several programs, so that keys of others are passed
over in it; a variable that is none of ours is an error.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import re
from collections.abc import Mapping
from typing import Any, Final

from ..config import did_you_mean, safe_path
from ..config.files import read_config_file
from ..config.schema import camel_case, safe_text
from ..errors import ConfigError
from .config import ClientConfig

logger = logging.getLogger(__name__)

PREFIX: Final = "SKYLARK_CLIENT_"
FILE_VARIABLE: Final = f"{PREFIX}CONFIG"
_JAVA: Final = {
    "clientIP": "client_ip",
    "pollNameServerInterval": "poll_name_server_interval_ms",
    "heartbeatBrokerInterval": "heartbeat_broker_interval_ms",
    "persistConsumerOffsetInterval": "persist_consumer_offset_interval_ms",
    "mqClientApiTimeout": "api_timeout_ms",
    "rocketmq.namesrv.addr": "namesrv_addr",
    "com.rocketmq.sendMessageWithVIPChannel": "vip_channel_enabled",
}
_NOT_TEXT: Final = {"properties", "tls"}
_FIELDS: Final = {
    item.name: item for item in dataclasses.fields(ClientConfig) if item.name not in _NOT_TEXT
}
_SPELLINGS: Final = {
    **{camel_case(name): name for name in _FIELDS},
    **{name: name for name in _FIELDS},
    **_JAVA,
}
_TRUE, _FALSE = frozenset({"true", "yes", "on", "1"}), frozenset({"false", "no", "off", "0"})


def settings_from_outside(file: str | None, env: Mapping[str, str] | None = None) -> dict[str, Any]:
    """What file and environment say, by the names of ClientConfig; raises ConfigError."""
    environment = os.environ if env is None else env
    found: dict[str, Any] = {}
    file = file or environment.get(FILE_VARIABLE) or None
    if file is not None:
        for entry in read_config_file(os.path.expanduser(file), "client"):
            name = _SPELLINGS.get(entry.key)
            where = f"{safe_path(file)}:{entry.line}: {safe_text(entry.key)}"
            if name is None:
                logger.info("%s is no setting of a client", where)
            else:
                found[name] = _value(name, entry.value, where)
    for variable, text in environment.items():
        if variable.startswith(PREFIX) and variable != FILE_VARIABLE and text:
            name = variable.removeprefix(PREFIX).lower()
            if name not in _FIELDS:
                near = did_you_mean(name, _FIELDS)
                raise ConfigError(
                    f"{safe_text(variable)} is no setting of a client; "
                    + (f"did you mean {PREFIX}{near.upper()}?" if near else "unset it")
                )
            found[name] = _value(name, text, variable)
    return found


def _value(name: str, text: str, where: str) -> Any:
    default = _FIELDS[name].default
    text = text.strip()
    if isinstance(default, bool):
        if text.lower() not in _TRUE | _FALSE:
            raise ConfigError(f"{where}={safe_text(text)}: expected true or false; correct it")
        return text.lower() in _TRUE
    if isinstance(default, int):
        if re.fullmatch(r"[0-9]{1,9}", text) is None:
            raise ConfigError(f"{where}={safe_text(text)}: expected a whole number; correct it")
        return int(text)
    return text or None
