"""RB-12: advice on the number of queues when a topic is made."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from skylark.cli import asking, topic


@pytest.mark.parametrize(
    ("brokers", "queues", "advised"),
    [(1, 8, True), (1, 15, True), (1, 16, False), (2, 8, False), (2, 4, True)],
)
def test_few_queues_are_made_and_more_are_advised(
    monkeypatch: pytest.MonkeyPatch, brokers: int, queues: int, advised: bool
) -> None:
    addresses = [f"10.0.0.{number}:10911" for number in range(brokers)]
    monkeypatch.setattr(asking, "ask", lambda namesrv, question: addresses)
    arguments = ["create", "Orders", "-r", str(queues), "-w", str(queues), "--json"]
    result = CliRunner().invoke(topic.app, arguments)
    assert result.exit_code == 0
    assert len(json.loads(result.stdout)) == brokers
    total = brokers * queues
    advice = f"advice: {total} queues keep at most {total} members of a group busy; 16 suit most"
    assert (advice in result.stderr) == advised
