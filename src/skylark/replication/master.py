"""Master: what to ship, and how far each replica has come.

A follower is one connection of one replica. Its cursors:

    # asked <= reported <= sent <= shippable

    asked      where it wanted the log from, as its first report said
    reported   what it has, as its last report said
    sent       what was handed to its connection
    shippable  what the master itself would not lose: flushed with SYNC_FLUSH, appended without

A report beyond what was sent, or behind an earlier one, ends the connection: no replica says that.
The first report is a wish and proves nothing. Without a cluster key a follower is believed once it
has confirmed something that was sent to it over this very connection, so that eight bytes from
anybody never stand for a copy; with the key it has proved itself before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ..errors import RemoteProtocolError


class ShippedLog(Protocol):
    """What is asked of the commit log."""

    @property
    def start(self) -> int: ...

    def read(self, offset: int, size: int) -> memoryview | None: ...


class Follower:
    """One connection of one replica."""

    __slots__ = ("address", "asked", "heard_ms", "is_trusted", "reported", "sent", "wrote_ms")

    def __init__(self, address: str, now_ms: int, *, is_trusted: bool) -> None:
        self.address = address
        self.is_trusted = is_trusted  # It has shown the cluster key.
        self.asked = -1  # Nothing was asked for yet.
        self.reported = -1
        self.sent = -1
        self.heard_ms = now_ms
        self.wrote_ms = now_ms

    @property
    def confirmed(self) -> int:
        """Up to where its copy counts; -1 while it counts for nothing."""
        return self.reported if self.is_trusted or self.reported > self.asked else -1


class Master:
    """The master's side of all connections; no sockets, no waiting."""

    def __init__(
        self,
        log: ShippedLog,
        shippable: Callable[[], int],
        *,
        file_bytes: int,
        batch_bytes: int,
        heartbeat_ms: int,
        silence_ms: int,
    ) -> None:
        self._log = log
        self._shippable = shippable
        self._file_bytes = file_bytes
        self._batch_bytes = batch_bytes
        self._heartbeat_ms = heartbeat_ms
        self._silence_ms = silence_ms
        self.followers: list[Follower] = []

    # Who follows.

    def join(self, address: str, now_ms: int, *, is_trusted: bool = False) -> Follower:
        """A connection is there."""
        follower = Follower(address, now_ms, is_trusted=is_trusted)
        self.followers.append(follower)
        return follower

    def leave(self, follower: Follower) -> None:
        """A connection is gone; what it confirmed counts no longer."""
        if follower in self.followers:
            self.followers.remove(follower)

    def confirmed(self, copies: int = 1) -> int:
        """How far at least so many replicas have the log; -1 where there are fewer."""
        ends = sorted((f.confirmed for f in self.followers), reverse=True)
        return ends[copies - 1] if len(ends) >= copies else -1

    @property
    def is_followed(self) -> bool:
        """Whether a replica is there that has asked for the log."""
        return any(follower.asked >= 0 for follower in self.followers)

    def lag_bytes(self) -> int | None:
        """How far the best replica is behind; None where there is none."""
        reports = [f.reported for f in self.followers if f.asked >= 0]
        return max(0, self._shippable() - max(reports)) if reports else None

    # What it says.

    def reported(self, follower: Follower, offset: int, now_ms: int) -> None:
        """Take note of a report; raises RemoteProtocolError for one that no replica makes."""
        follower.heard_ms = now_ms
        if follower.asked < 0:
            self._asked(follower, offset)
            return
        if offset > follower.sent:
            raise RemoteProtocolError(
                f"it reports {offset}, and was sent the log up to {follower.sent}"
            )
        if offset < follower.reported:
            if follower.reported == follower.asked and offset == 0:
                return  # An empty replica that was sent nothing yet repeats itself.
            raise RemoteProtocolError(f"it reports {offset} after {follower.reported}")
        follower.reported = offset

    def _asked(self, follower: Follower, offset: int) -> None:
        start, end = self._log.start, self._shippable()
        if offset > end:
            raise RemoteProtocolError(
                f"it asks for the log from {offset}, which ends at {end}: it followed another "
                "master, or this one lost the end of its log; see docs/operations/replication.md"
            )
        if offset == 0:
            # RocketMQ ships the newest file only. A copy that lacks the older files is not a copy.
            offset = start
        elif offset < start:
            raise RemoteProtocolError(
                f"it asks for the log from {offset}, and what is kept begins at {start}: "
                "move its store away and let it copy anew"
            )
        follower.asked = follower.reported = follower.sent = offset

    # What it gets.

    def next_push(self, follower: Follower) -> tuple[int, memoryview] | None:
        """The next piece of the log for a follower; None while it has everything.

        A piece never goes beyond a file. Raises RemoteProtocolError where retention was faster.
        """
        at = follower.sent
        if at < 0:
            return None
        left_in_file = self._file_bytes - at % self._file_bytes
        size = min(self._shippable() - at, self._batch_bytes, left_in_file)
        if size <= 0:
            return None
        data = self._log.read(at, size)
        if data is None:
            raise RemoteProtocolError(
                f"it fell behind to {at}, and what is kept begins at {self._log.start}: "
                "move its store away and let it copy anew"
            )
        return at, data

    def pushed(self, follower: Follower, size: int, now_ms: int) -> None:
        """A piece, or a heartbeat, was handed to the connection."""
        follower.sent += size
        follower.wrote_ms = now_ms

    def wants_heartbeat(self, follower: Follower, now_ms: int) -> bool:
        """Whether it has heard nothing for too long."""
        return follower.asked >= 0 and now_ms - follower.wrote_ms >= self._heartbeat_ms

    def is_silent(self, follower: Follower, now_ms: int) -> bool:
        """Whether nothing was heard of it for too long."""
        return now_ms - follower.heard_ms > self._silence_ms
