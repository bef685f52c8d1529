"""LogShipper: lines of Python's logging as messages, and what happens when nobody takes them."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from skylark.errors import ConfigError, InvalidName
from skylark.log_shipper import LogShipper
from skylark.testing import DiskBroker


@pytest.fixture
def log() -> Iterator[logging.Logger]:
    log = logging.getLogger("shop.cart")
    log.setLevel(logging.DEBUG)
    log.propagate = False
    yield log
    log.handlers.clear()
    log.propagate = True


def nobody() -> str:
    """An address at which nobody listens."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{one.getsockname()[1]}"


def test_lines_arrive_as_json_with_their_level_as_tag(tmp_path: Path, log: logging.Logger) -> None:
    with DiskBroker(tmp_path) as broker:
        shipper = LogShipper(broker.address, "LogTopic")
        log.addHandler(shipper)
        log.info("bought %d apples", 3)
        try:
            raise KeyError("pear")
        except KeyError:
            log.exception("no such fruit")
        logging.getLogger("skylark.client").warning("a line of the client's own")
        shipper.close()
        assert (shipper.sent, shipper.dropped) == (2, 0)
        log.info("after the end")
        assert shipper.dropped == 1

        async def arrived() -> list[tuple[str | None, dict[str, object]]]:
            found = []
            async with (
                broker.connect() as mq,
                mq.consumer("readers", {"LogTopic": "*"}, consume_from="first") as consumer,
                asyncio.timeout(20),
            ):
                async for message in consumer:
                    found.append((message.tag, json.loads(message.body)))
                    if len(found) == 2:
                        break
            return sorted(found, key=lambda one: one[0] or "")

        (first_tag, first), (second_tag, second) = asyncio.run(arrived())
    assert (first_tag, second_tag) == ("ERROR", "INFO")
    assert second["text"] == "bought 3 apples"
    assert second["logger"] == "shop.cart"
    assert "KeyError: 'pear'" in str(first["error"])


def test_a_log_that_nobody_takes_holds_nothing_up(log: logging.Logger) -> None:
    shipper = LogShipper(nobody(), "LogTopic", pending_max=3, close_timeout_s=0.1)
    log.addHandler(shipper)
    for number in range(10):
        log.info("line %d", number)
    assert shipper.dropped == 7
    shipper.close()
    assert (shipper.sent, shipper.dropped) == (0, 10), "every line is accounted for"


def test_wrong_settings_are_said_at_once() -> None:
    with pytest.raises(InvalidName, match="Log Topic"):
        LogShipper("127.0.0.1:9876", "Log Topic")
    with pytest.raises(ConfigError, match="no setting 'tsl'"):
        LogShipper("127.0.0.1:9876", "LogTopic", tsl=True)
