"""Settings that every test shares."""

import os

import pytest
from hypothesis import HealthCheck, settings

# Seeded and replayable: a failure here is the same failure everywhere. SKYLARK_HYPOTHESIS=campaign
# looks further, with fresh seeds.
settings.register_profile(
    "repeatable",
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("campaign", deadline=None, max_examples=5_000)
settings.load_profile(os.environ.get("SKYLARK_HYPOTHESIS", "repeatable"))

# Files with few and long tests come first, so that no worker sits idle beside the last of them.
_LONGEST_FIRST = ("interop", "integration", "crash", "simulation")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the folders whose tests take long before the others."""
    here = os.path.dirname(__file__)

    def rank(item: pytest.Item) -> int:
        folder = os.path.relpath(item.path, here).split(os.sep)[0]
        return _LONGEST_FIRST.index(folder) if folder in _LONGEST_FIRST else len(_LONGEST_FIRST)

    items.sort(key=rank)
