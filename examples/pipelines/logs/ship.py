"""A program whose log goes to a topic, without waiting for anything.

    skylark up
    python examples/pipelines/logs/ship.py
    skylark pipeline run examples/pipelines/logs/logs.yaml

Lines are sent oneway by a thread of their own. When they come faster than they can be sent, or
nobody is there to take them, they are dropped and counted; the program goes on.
"""

from __future__ import annotations

import logging
import os

from skylark.log_shipper import LogShipper

LINES = 1_000


def main() -> None:
    shipper = LogShipper(os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876"), "LogTopic")
    log = logging.getLogger("shop")
    log.setLevel(logging.INFO)
    log.propagate = False
    log.addHandler(shipper)
    for number in range(LINES):
        if number % 10:
            log.info("GET /page/%d 200", number)
        else:
            log.error("GET /page/%d 500", number)
    shipper.close()
    print(f"{shipper.sent} lines shipped, {shipper.dropped} dropped")


if __name__ == "__main__":
    main()
