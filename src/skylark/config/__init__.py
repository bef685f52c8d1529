"""Configuration: one typed schema per component, filled from four kinds of source.

A schema is a frozen keyword-only dataclass derived from Settings; each field is made by setting(),
which holds its default, its meaning and its bounds in one place. Files, environment, flags, remote
updates, `skylark config` and the reference pages all read that one description.

    rising precedence   spelling
    default             in the schema
    file                RocketMQ's `key=value` properties, or TOML where the name ends in .toml
    environment         SKYLARK_LISTEN_PORT, RMQ_LISTEN_PORT; also NAMESRV_ADDR and ROCKETMQ_HOME
    flag                --set key=value, and a command's own flags

A key may be written as listenPort or listen_port, and by RocketMQ's name where that is another.
A bad value raises InvalidSetting in one line. An unknown key is a warning with the nearest name,
since one file often serves several programs and versions. Every value remembers its source.
"""

from .explain import Explanation, explain, explain_all, reference_page
from .files import Property, merge_properties, parse_properties
from .load import DEFAULT, Flag, Loaded, Source, load, parse_set
from .remote import Update, apply_update, public_items
from .schema import (
    Setting,
    Settings,
    Value,
    did_you_mean,
    safe_path,
    setting,
    settings_of,
    value_text,
)
from .server import ServerSettings, config_text, update_from_text

__all__ = [
    "DEFAULT",
    "Explanation",
    "Flag",
    "Loaded",
    "Property",
    "ServerSettings",
    "Setting",
    "Settings",
    "Source",
    "Update",
    "Value",
    "apply_update",
    "config_text",
    "did_you_mean",
    "explain",
    "explain_all",
    "load",
    "merge_properties",
    "parse_properties",
    "parse_set",
    "public_items",
    "reference_page",
    "safe_path",
    "setting",
    "settings_of",
    "update_from_text",
    "value_text",
]
