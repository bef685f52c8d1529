from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from sim_peers import World


@pytest.fixture
def world(caplog: pytest.LogCaptureFixture) -> Iterator[World]:
    caplog.set_level(logging.INFO, logger="skylark.net")
    world = World()
    yield world
    world.loop.close()
