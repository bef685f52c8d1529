"""Typed JSON bodies: what requests and responses carry beside their headers."""

from .body import Body as Body
from .registration import RegisterBrokerBody as RegisterBrokerBody
from .registration import body_crc32 as body_crc32
from .routes import ClusterInfoBody as ClusterInfoBody
from .routes import TopicRouteBody as TopicRouteBody
from .routes import wants_standard_json as wants_standard_json
from .settings import KVConfigTable as KVConfigTable
from .settings import KVTable as KVTable
from .settings import format_properties as format_properties
from .settings import parse_properties as parse_properties
from .topics import DataVersionBody as DataVersionBody
from .topics import TopicConfigTable as TopicConfigTable
from .topics import TopicList as TopicList
