"""`skylark pipeline archive` and `mirror`: what is asked, and refused, before Spark starts."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from skylark.cli import exits, pipeline, pipeline_spark
from skylark.cli.main import main
from skylark.errors import ConfigError
from skylark.spark.catalogue import Catalogue, Entry
from skylark.spark.offsets import QueueKey


class Servers:
    """They have one topic."""

    def brokers(self) -> dict[str, Any]:
        return {}

    def queues(self, topics: list[str]) -> list[QueueKey]:
        if topics != ["Stays"]:
            raise ConfigError(f"option topic: there is no topic {topics}")
        return [QueueKey("Stays", "a", 0)]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The commands that came as far as Spark."""

    @contextmanager
    def servers(namesrv: str) -> Any:
        yield Servers()

    found: list[str] = []
    monkeypatch.setattr(pipeline_spark, "cluster_of", servers)
    monkeypatch.setattr(pipeline, "_go_on", lambda name, *rest, **more: found.append(name))
    return found


def test_a_topic_that_is_archived_may_be_gone(tmp_path: Path, started: list[str]) -> None:
    Catalogue(tmp_path).add(Entry(0, 0, (), {QueueKey("Deleted", "a", 0): 9}))
    command = ["pipeline", "archive", "Stays,Deleted", "--archive", str(tmp_path)]
    assert main(command) == 0
    assert started == ["archive"]


def test_a_topic_that_never_was_is_said(
    tmp_path: Path, started: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pipeline", "archive", "Typo", "--archive", str(tmp_path)]) == exits.WRONG_USE
    assert "there is no topic ['Typo']" in capsys.readouterr().err
    assert started == []


def test_a_mirror_of_messages_without_bodies_is_refused(
    tmp_path: Path, started: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["T", "--to", "ns:1", "--checkpoint", str(tmp_path), "--body-mode", "permissive"]
    assert main(["pipeline", "mirror", *words]) == exits.WRONG_USE
    assert "bodyMode=permissive: a message without a body cannot be sent" in capsys.readouterr().err
    assert started == []
