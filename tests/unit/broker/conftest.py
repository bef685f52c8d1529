from __future__ import annotations

from collections.abc import Iterator

import pytest
from broker_world import BrokerWorld


@pytest.fixture
def world() -> Iterator[BrokerWorld]:
    world = BrokerWorld()
    yield world
    world.loop.close()
