"""Crash tests recover thousands of stores, each with something to say."""

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Keep recoveries from filling the output."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)
