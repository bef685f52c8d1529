"""The pytest plugin: a real name server and broker for each test that asks for one.

    def test_orders(skylark_broker):
        async def scenario():
            async with skylark_broker.connect() as mq: ...
            await skylark_broker.clock.advance(hours=4, minutes=46)

        skylark_broker.run(scenario)

    fixture          what a test gets       time      disk              network
    skylark_broker   MemoryBroker           virtual   in memory         simulated, with faults
    skylark_cluster  MemoryCluster, by      the same, with so many brokers
                     skylark_cluster(3)
    skylark_disk     DiskBroker             real      tmp_path          loopback, free ports

A test changes settings with a marker: `@pytest.mark.skylark(flush_disk_type="ASYNC_FLUSH")`; they
are BrokerConfig's. This module is loaded in every run of pytest, so all else is imported by the
fixture that needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .disk_broker import DiskBroker
    from .memory_broker import MemoryBroker
    from .memory_cluster import MemoryCluster

    MakeCluster = Callable[..., MemoryCluster]

MARKER = "skylark"


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known."""
    config.addinivalue_line("markers", f"{MARKER}(**settings): settings of the test's own broker")


@pytest.fixture
def skylark_broker(request: pytest.FixtureRequest) -> Iterator[MemoryBroker]:
    """A name server and a broker in memory and virtual time, with fault switches."""
    from .memory_broker import MemoryBroker

    with MemoryBroker(**_settings(request)) as broker:
        yield broker


@pytest.fixture
def skylark_cluster(request: pytest.FixtureRequest) -> Iterator[MakeCluster]:
    """A function that starts a name server and so many brokers, in memory and virtual time."""
    from .memory_cluster import MemoryCluster

    with ExitStack() as stack:

        def make(brokers: int = 2, **settings: Any) -> MemoryCluster:
            return stack.enter_context(MemoryCluster(brokers, **_settings(request), **settings))

        yield make


@pytest.fixture
def skylark_disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[DiskBroker]:
    """A name server and a broker on real files and loopback ports."""
    from .disk_broker import DiskBroker

    with DiskBroker(tmp_path / "skylark", **_settings(request)) as broker:
        yield broker


def _settings(request: pytest.FixtureRequest) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for marker in request.node.iter_markers(MARKER):
        if marker.args:
            raise pytest.UsageError(f"@pytest.mark.{MARKER} takes settings by name only")
        settings = {**marker.kwargs, **settings}  # The nearest marker comes first, and counts.
    return settings
