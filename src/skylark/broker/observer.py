"""Observer: what the broker tells whoever counts. This one does not count."""

from __future__ import annotations


class Observer:
    """Told of everything that statistics are made of; called on the hot path, so keep it short."""

    def stored(self, topic: str, count: int, size_bytes: int) -> None:
        """Messages were appended to a topic."""

    def waited(self, count: int, waited_ms: int) -> None:
        """Sends were answered that had waited for the disk or a replica."""

    def refused(self, cause: str) -> None:
        """A send was refused by flow control; the cause is its tag, without brackets."""

    def delivered(self, group: str, topic: str, queue_id: int, count: int, size_bytes: int) -> None:
        """A pull returned messages."""

    def missed(self, group: str, topic: str, queue_id: int) -> None:
        """A pull found nothing."""

    def sent_back(self, group: str, topic: str, *, is_dead: bool) -> None:
        """A consumer gave a message back, to be retried or as a dead letter."""
