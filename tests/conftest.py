"""Settings that every test shares."""

import gc
import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

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

# Of every Java that Spark is started with here: its life is short, and the quick compiler and the
# plain collector take half the CPU time until its first rows.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

_LINES_OF_A_FIRST_TRY = 30
# Files with few and long tests come first, so that no worker sits idle beside the last of them.
_LONGEST_FIRST = ("interop", "integration", "crash", "simulation")
# Handed to the workers by themselves. Others go by files: there is one server for a file, and to
# hand out a short test takes longer than the test.
_ONE_BY_ONE = ("crash/", "property/", "simulation/")
# Each takes a worker for a minute or more.
_LONG_FILES = {
    f"interop/test_{name}.py"
    for name in (
        "broker_java", "interop_filters", "interop_mqadmin", "interop_outage",
        "interop_replication", "interop_spark_cluster", "interop_sql", "interop_transactions",
        "python_consumer", "store_swap",
    )
}  # fmt: skip
# Those of the first two groups share one JVM each, those of the third start processes with a JVM of
# their own; they take about as long.
_GROUPS = {
    f"integration/test_{name}.py": group
    for group, names in {
        "spark": ("spark", "spark_archive", "spark_metrics", "pipelines", "pipeline_demo"),
        "spark too": (
            "pipeline_commands", "spark_changes", "spark_failover", "spark_options",
            "spark_retention", "spark_streams",
        ),
        "spark processes": ("spark_exactly_once", "pipeline_kills"),
    }.items()
    for name in names
}  # fmt: skip


def _file(nodeid: str) -> str:
    """The file of a test, as seen from this folder."""
    return nodeid.partition("::")[0].removeprefix("tests/")


class _InWholeFiles(LoadScopeScheduling):
    """Hands out groups of files, files, and single tests where those take long."""

    def _split_scope(self, nodeid: str) -> str:
        file = _file(nodeid)
        return _GROUPS.get(file, nodeid if file.startswith(_ONE_BY_ONE) else file)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    """How tests are spread over the workers."""
    return _InWholeFiles(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put what takes long before the rest."""

    def rank(item: pytest.Item) -> int:
        file = _file(item.nodeid)
        folder = file.partition("/")[0]
        if file in _GROUPS or file in _LONG_FILES:
            return -1
        return _LONGEST_FIRST.index(folder) if folder in _LONGEST_FIRST else len(_LONGEST_FIRST)

    items.sort(key=rank)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Give a second try servers of its own: the first has left its messages at those it had."""
    if isinstance(item, pytest.Function) and getattr(item, "execution_count", 1) > 1:
        for definitions in item._fixtureinfo.name2fixturedefs.values():
            if definitions[-1].scope in ("class", "module"):
                definitions[-1].finish(item._request)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say why first tries failed: each is a bug to be found."""
    for report in terminalreporter.stats.get("rerun", ()):
        terminalreporter.section(f"first try of {report.nodeid}")
        for line in report.longreprtext.splitlines()[-_LINES_OF_A_FIRST_TRY:]:
            terminalreporter.line(line[:200])


@pytest.fixture(autouse=True)
def _the_collector_stays_on() -> Iterator[None]:
    """Blame the test that leaves the collector off, not a later one on the same worker."""
    yield
    if not gc.isenabled():
        gc.enable()
        pytest.fail("the test left the garbage collector switched off")
