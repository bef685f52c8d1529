"""Settings that every test shares."""

import gc
import os
from collections.abc import Iterator

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
# These share one JVM, and two of them at once would only be in each other's way.
_ON_SPARK = frozenset(
    f"integration/test_{name}.py"
    for name in (
        "spark", "spark_archive", "spark_exactly_once", "spark_metrics", "pipelines",
        "pipeline_demo",
    )
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep files together, all of Spark too, and put what takes long before the rest."""
    here = os.path.dirname(__file__)

    def rank(item: pytest.Item) -> int:
        file = os.path.relpath(item.path, here).replace(os.sep, "/")
        item.add_marker(pytest.mark.xdist_group("spark" if file in _ON_SPARK else file))
        folder = file.partition("/")[0]
        if file in _ON_SPARK:
            return -1
        return _LONGEST_FIRST.index(folder) if folder in _LONGEST_FIRST else len(_LONGEST_FIRST)

    items.sort(key=rank)


@pytest.fixture(autouse=True)
def _the_collector_stays_on() -> Iterator[None]:
    """Blame the test that leaves the collector off, not a later one on the same worker."""
    yield
    if not gc.isenabled():
        gc.enable()
        pytest.fail("the test left the garbage collector switched off")
