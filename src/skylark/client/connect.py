"""connect: the front door of the client."""

from __future__ import annotations

import asyncio
import ipaddress
import random
import ssl
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from ..clock import Clock
from ..errors import ConfigError
from ..model.addresses import AddressList
from ..net import AsyncioNetwork, Network, client_context
from ..remote.addresses import find_addresses
from .config import DEFAULT_INSTANCE_NAME, ClientConfig
from .facade import Client
from .hooks import RpcHook
from .session import Session
from .settings import settings_from_outside

# Nothing is sent there: a datagram socket that is only connected shows which address we would use.
_ANYWHERE = "192.0.2.1"
_DISCARD_PORT = 9

# On a simulated network two runs of one seed are the same to the byte, whichever process runs them.
_SIMULATED_PID = 1


def connect(
    namesrv_addr: str | None = None,
    *,
    tls: ssl.SSLContext | bool = False,
    network: Network | None = None,
    clock: Clock | None = None,
    rng: random.Random | None = None,
    env: Mapping[str, str] | None = None,
    hooks: Iterable[RpcHook] = (),
    config_file: str | None = None,
    **settings: Any,
) -> Client:
    """Return a client for the cluster of some name servers: `async with connect(...) as mq`.

    Without addresses they come from the property rocketmq.namesrv.addr, the variable NAMESRV_ADDR,
    or the address service. Settings are those of ClientConfig. tls=True encrypts and trusts any
    certificate, as RocketMQ's clients do by default; give a context to check certificates.
    What is not given here may come from a file or SKYLARK_CLIENT_… variables; see settings.py.
    """
    known = set(ClientConfig.__dataclass_fields__) - {"namesrv_addr", "tls"}
    for name in settings:
        if name not in known:
            raise ConfigError(
                f"connect has no setting {name!r}; it knows {', '.join(sorted(known))}"
            )
    settings = {**settings_from_outside(config_file, env), **settings}
    given_outside = settings.pop("namesrv_addr", None)
    namesrv_addr = namesrv_addr or given_outside
    context = tls if isinstance(tls, ssl.SSLContext) else client_context() if tls else None
    config = ClientConfig(namesrv_addr=namesrv_addr, tls=context, **settings)
    find_addresses(code=namesrv_addr, properties=config.properties, env=env)  # Or raise, now.
    is_real = network is None or isinstance(network, AsyncioNetwork)
    find_ip = local_ip if is_real else None
    kept_hooks = tuple(hooks)

    def make_session(number: int) -> Session:
        # A name of the application's own would make all sessions the same member of a group.
        name = config.instance_name
        is_alike = number > 1 and name != DEFAULT_INSTANCE_NAME
        return Session(
            replace(config, instance_name=f"{name}-{number}") if is_alike else config,
            network=network,
            clock=clock,
            rng=rng,
            env=env,
            hooks=kept_hooks,
            find_ip=find_ip,
            pid=None if is_real else _SIMULATED_PID,
        )

    return Client(make_session)


async def local_ip(name_servers: AddressList) -> str:
    """Our address as name servers would see it; a guess where that cannot be known."""
    hosts = [address.host for address in name_servers.addresses if _is_ip(address.host)]
    for host in (*hosts, _ANYWHERE):
        try:
            transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
                asyncio.DatagramProtocol, remote_addr=(host, _DISCARD_PORT)
            )
        except OSError:
            continue
        found = str(transport.get_extra_info("sockname")[0])
        transport.close()
        return found
    return "127.0.0.1"


def _is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
