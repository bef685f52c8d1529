"""AddressList: the name servers of a cluster, as people write them.

text                                   stands for
a:9876;b:9876                          two servers; blanks around them are dropped
[::1]:9876                             an IPv6 address
http://a:9876                          a:9876
http://MQ_INST_1_x.example.com:80      that host, and the namespace MQ_INST_1_x
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import NamedTuple

from ..errors import ConfigError

NAME_SERVER_PORT = 9876
ADDRESSES_MAX = 256

_SHOWN_CHARS_MAX = 80
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_INSTANCE = re.compile(r"(?P<instance>MQ_INST_\w+_\w+)\..*", re.ASCII)
_HOST = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,253}[A-Za-z0-9_.])?")
_PORT = re.compile(r"[0-9]{1,5}")


class Address(NamedTuple):
    """One name server."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class AddressList:
    """The name servers of a cluster, and the namespace where an address implies one."""

    addresses: tuple[Address, ...] = ()
    namespace: str | None = None

    def __bool__(self) -> bool:
        return bool(self.addresses)

    def __str__(self) -> str:
        return ";".join(map(str, self.addresses))


def parse_addresses(text: str) -> AddressList:
    """Read `host:port;host:port`; raises ConfigError with the part that is wrong."""
    addresses: dict[Address, None] = {}
    namespace = None
    for part in text.split(";"):
        if not part.strip():
            continue
        endpoint = _without_scheme(part.strip())
        instance = _INSTANCE.fullmatch(endpoint)
        if instance is not None:
            namespace = namespace or instance["instance"]
        addresses[_parse_address(endpoint)] = None
        if len(addresses) > ADDRESSES_MAX:
            raise ConfigError(f"more than {ADDRESSES_MAX} name servers; give fewer")
    return AddressList(tuple(addresses), namespace)


def _without_scheme(endpoint: str) -> str:
    scheme = _SCHEME.match(endpoint)
    if scheme is None:
        return endpoint
    return endpoint[scheme.end() :].rstrip("/")


def _parse_address(endpoint: str) -> Address:
    host, port = _split_address(endpoint)
    if port is None:
        port = str(NAME_SERVER_PORT)
    good_port = _PORT.fullmatch(port) is not None and 0 < int(port) <= 65_535
    if not good_port or not (_HOST.fullmatch(host) or _is_ipv6(host)):
        shown = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in endpoint)
        raise ConfigError(
            f"{shown[:_SHOWN_CHARS_MAX]!r} is not a name server address; "
            "write host:port, [ipv6]:port, or several joined by ;"
        )
    return Address(host, int(port))


def _split_address(endpoint: str) -> tuple[str, str | None]:
    if endpoint.startswith("["):
        host, bracket, rest = endpoint[1:].partition("]")
        if not bracket or not _is_ipv6(host):
            return "", None
        return host, rest[1:] if rest[:1] == ":" else None if not rest else ""
    # RocketMQ splits at the last colon, IPv6 without brackets included.
    host, colon, port = endpoint.rpartition(":")
    return (host, port) if colon else (endpoint, None)


def _is_ipv6(host: str) -> bool:
    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        return False
    return True
