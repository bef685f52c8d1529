"""Signals in commands that run Spark, without Spark."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from skylark.cli.pipeline_queries import finish
from skylark.cli.pipeline_signals import (
    ended_by_signal,
    interrupted_by_signal,
    kept_handlers,
    stopping_by_signal,
)
from skylark.errors import ConfigError


class Query:
    """A query that ends after some waits, or fails."""

    def __init__(self, waits: int = 3, error: Exception | None = None) -> None:
        self.waits = waits
        self.error = error
        self.is_stopped = False

    def awaitTermination(self, timeout: float) -> bool:
        self.waits -= 1
        if self.error is not None:
            raise self.error
        return self.waits <= 0

    def stop(self) -> None:
        self.is_stopped = True


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_asks_and_the_second_does_not_wait(
    capfd: pytest.CaptureFixture[str], number: int
) -> None:
    heard: list[str] = []
    before = signal.getsignal(number)
    with stopping_by_signal("this micro-batch") as stop:
        stop.then(lambda: heard.append("early"))
        os.kill(os.getpid(), number)
        assert stop.is_asked
        stop.then(lambda: heard.append("late"))
        assert heard == ["early", "late"]
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
    assert signal.getsignal(number) is before
    assert "stopping after this micro-batch; once more to stop at once" in capfd.readouterr().err


def test_while_servers_are_asked_a_signal_interrupts() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), interrupted_by_signal():
        os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_stop_is_said_though_standard_error_is_a_log_meanwhile(
    capfd: pytest.CaptureFixture[str], tmp_path: Any
) -> None:
    with stopping_by_signal("Spark's start") as stop, (tmp_path / "log").open("w") as log:
        kept = os.dup(2)
        os.dup2(log.fileno(), 2)
        os.kill(os.getpid(), signal.SIGINT)
        os.dup2(kept, 2)
        os.close(kept)
    assert stop.is_asked
    assert "stopping after Spark's start" in capfd.readouterr().err


def test_a_handler_that_spark_replaces_is_put_back() -> None:
    with stopping_by_signal("this micro-batch") as stop:
        with kept_handlers():
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # As Spark does with one of its own.
        assert signal.getsignal(signal.SIGINT) == stop.ask
    before = signal.getsignal(signal.SIGINT)
    with ended_by_signal():
        assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL
    assert signal.getsignal(signal.SIGINT) is before


def test_a_query_ends_by_itself_by_a_signal_or_with_one_of_our_errors() -> None:
    with stopping_by_signal("this micro-batch") as stop:
        query = Query()
        finish(query, stop)
        assert (query.waits, query.is_stopped) == (0, False)
        with pytest.raises(ConfigError, match="option topic: no"):
            finish(Query(error=RuntimeError("skylark.errors.ConfigError: option topic: no")), stop)
        os.kill(os.getpid(), signal.SIGTERM)
        query = Query(waits=100)
        finish(query, stop)
        assert query.is_stopped
