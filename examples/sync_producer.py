"""Send messages from ordinary blocking code, and look at each receipt.

    python examples/sync_producer.py

This is the way for what matters: send() returns when a broker has stored the message, tries another
broker when one fails, and raises when none took it. Then the message is still yours.
"""

import os

from skylark import Message, sync
from skylark.errors import SkylarkError

ADDRESS = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")


def main() -> None:
    with sync.connect(ADDRESS) as mq, mq.producer("notices") as producer:
        for number in range(3):
            message = Message(
                "NoticeTopic", f"notice {number}".encode(), tag="Mail", keys=[f"n-{number}"]
            )
            try:
                receipt = producer.send(message)
            except SkylarkError as error:
                raise SystemExit(f"not sent: {error}") from None
            print(
                receipt.status.name, receipt.message_id, f"queue {receipt.queue.queue_id}",
                f"offset {receipt.queue_offset}",
            )  # fmt: skip


if __name__ == "__main__":
    main()
