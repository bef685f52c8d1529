"""The captured files are what their README says they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

FILES = sorted(Path(__file__).parent.glob("*.json"))
KEYS = {"link", "sender", "code", "serialization", "oneway", "request"}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_exchange_holds_whole_frames_and_says_which(file: Path) -> None:
    document: dict[str, Any] = json.loads(file.read_text())
    assert document["rocketmq"] == "4.9.8"
    assert document["step"] == file.stem
    assert document["exchanges"], "a step without an exchange"
    for exchange in document["exchanges"]:
        assert KEYS <= exchange.keys() <= KEYS | {"answer", "answer_code"}
        request = bytes.fromhex(exchange["request"])
        assert int.from_bytes(request[:4], "big") == len(request) - 4
        assert request[4] == {"JSON": 0, "ROCKETMQ": 1}[exchange["serialization"]]
        if "answer" in exchange:
            assert not exchange["oneway"]
            answer = bytes.fromhex(exchange["answer"])
            assert int.from_bytes(answer[:4], "big") == len(answer) - 4


def test_the_steps_of_the_readme_are_there() -> None:
    stems = {file.stem for file in FILES}
    assert {"broker-register", "broker-register-compressed", "replica", "probe-route"} <= stems
    for part in ("produce", "consume", "orderly", "sql", "lite-pull", "request-reply"):
        assert {f"client-json-{part}", f"client-binary-{part}"} <= stems
