"""BrokerStats: what the broker counts, and what comes of it per second, hour and day.

A counter is told of whole batches: one look into a table and a few additions, however many messages
there were. Everything else happens when the counters are sampled, every ten seconds:

    window   a sample every   kept   reaches back
    minute   10 s             7      60 s
    hour     10 min           7      1 h
    day      1 h              25     24 h

A window's figures are the difference between now and its oldest sample, so that a fresh counter
shows at once; its rate counts at least one step, or a single message would look like a flood.

    name                                     key
    TOPIC_PUT_NUMS, TOPIC_PUT_SIZE           topic
    GROUP_GET_NUMS, GROUP_GET_SIZE           topic@group
    SNDBCK_PUT_NUMS                          topic@group
    BROKER_PUT_NUMS, BROKER_GET_NUMS         cluster

Counters of topics and groups that are deleted go with them; others go when nothing has happened for
longer than the longest window, and there are never more than a fixed number.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from typing import Final, NamedTuple, TypeVar

from ..clock import Clock
from ..protocol.bodies import BrokerStatsDataBody, BrokerStatsItem
from .observer import Observer
from .put_times import PutTimes

SAMPLE_MS: Final = 10_000
COUNTERS_MAX: Final = 200_000
_PART: Final = 500  # Counters sampled in one go.
_IDLE_MS_MAX: Final = 25 * 3_600_000
_RATES_MS: Final = (10_000, 60_000, 600_000)

_K = TypeVar("_K")


class _Step(NamedTuple):
    every_ms: int
    kept: int

    @property
    def span_ms(self) -> int:
        return self.every_ms * (self.kept - 1)


_MINUTE: Final = _Step(SAMPLE_MS, 7)
_HOUR: Final = _Step(600_000, 7)
_DAY: Final = _Step(3_600_000, 25)


class _Sample(NamedTuple):
    at_ms: int
    nums: int
    size_bytes: int
    times: int


class Counter:
    """Messages, bytes and batches of one kind since it was made."""

    __slots__ = ("changed_at_ms", "day", "hour", "minute", "nums", "size_bytes", "times")

    def __init__(self, now_ms: int) -> None:
        self.nums = 0
        self.size_bytes = 0
        self.times = 0
        self.changed_at_ms = now_ms
        first = _Sample(now_ms, 0, 0, 0)
        self.minute = [first]
        self.hour = [first]
        self.day = [first]

    def now(self, now_ms: int) -> _Sample:
        """The counts as they are."""
        return _Sample(now_ms, self.nums, self.size_bytes, self.times)

    def sample(self, now_ms: int) -> None:
        """Take note of the counts in the windows whose step has passed."""
        sample = self.now(now_ms)
        if sample.times != self.minute[-1].times:
            self.changed_at_ms = now_ms
        _advance(self.minute, sample, _MINUTE)
        _advance(self.hour, sample, _HOUR)
        _advance(self.day, sample, _DAY)

    def windows(self, now_ms: int, *, sizes: bool) -> BrokerStatsDataBody:
        """The figures of the last minute, hour and day, in messages or in bytes."""
        sample = self.now(now_ms)
        return BrokerStatsDataBody(
            minute=_figures(self.minute, sample, _MINUTE, sizes=sizes),
            hour=_figures(self.hour, sample, _HOUR, sizes=sizes),
            day=_figures(self.day, sample, _DAY, sizes=sizes),
        )


def _advance(window: list[_Sample], sample: _Sample, step: _Step) -> None:
    if window[0].times == sample.times:
        # Nothing happened in all this time: one sample says as much as many, and takes less room.
        at_ms = max(window[0].at_ms, sample.at_ms - step.span_ms)
        window[:] = [sample._replace(at_ms=at_ms)]
        return
    # Half a step of slack: timers are late by varying amounts.
    if sample.at_ms - window[-1].at_ms >= step.every_ms - SAMPLE_MS // 2:
        window.append(sample)
        if len(window) > step.kept:
            del window[0]


def _figures(window: list[_Sample], now: _Sample, step: _Step, *, sizes: bool) -> BrokerStatsItem:
    first = window[0]
    total = now.size_bytes - first.size_bytes if sizes else now.nums - first.nums
    times = now.times - first.times
    passed_ms = max(step.every_ms, now.at_ms - first.at_ms)
    return BrokerStatsItem(total, total * 1000 / passed_ms, total / times if times else 0.0)


class _Totals(NamedTuple):
    at_ms: int
    put: int
    found: int
    missed: int
    transferred: int


class BrokerStats(Observer):
    """All counters of a broker; sample() is to be called every SAMPLE_MS."""

    def __init__(self, clock: Clock, *, cluster: str) -> None:
        self._clock = clock
        self._cluster = cluster
        self._puts: dict[str, Counter] = {}
        self._gets: dict[tuple[str, str], Counter] = {}
        self._send_backs: dict[tuple[str, str], Counter] = {}
        now_ms = clock.monotonic_ms()
        self._put = Counter(now_ms)
        self._put_times = PutTimes(now_ms)
        self._got = Counter(now_ms)
        self._found = 0  # Pulls that found something, and those that did not.
        self._missed = 0
        self._refused = 0
        self._dead = 0
        self._history: deque[_Totals] = deque((_Totals(now_ms, 0, 0, 0, 0),), 61)
        self._day = self._today()
        self._put_mornings = self._got_mornings = (0, 0)  # Totals at midnight: before, and today.

    # Events, told by the processors.

    def stored(self, topic: str, count: int, size_bytes: int) -> None:
        counter = self._puts.get(topic)
        if counter is None:
            counter = self._made(self._puts, topic)
        counter.nums += count
        counter.size_bytes += size_bytes
        counter.times += 1
        counter = self._put
        counter.nums += count
        counter.size_bytes += size_bytes
        counter.times += 1

    def waited(self, count: int, waited_ms: int) -> None:
        self._put_times.waited(count, waited_ms)

    def refused(self, cause: str) -> None:
        self._refused += 1

    def delivered(self, group: str, topic: str, queue_id: int, count: int, size_bytes: int) -> None:
        key = (topic, group)
        counter = self._gets.get(key)
        if counter is None:
            counter = self._made(self._gets, key)
        counter.nums += count
        counter.size_bytes += size_bytes
        counter.times += 1
        counter = self._got
        counter.nums += count
        counter.size_bytes += size_bytes
        counter.times += 1
        self._found += 1

    def missed(self, group: str, topic: str, queue_id: int) -> None:
        self._missed += 1

    def sent_back(self, group: str, topic: str, *, is_dead: bool) -> None:
        key = (topic, group)
        counter = self._send_backs.get(key)
        if counter is None:
            counter = self._made(self._send_backs, key)
        counter.nums += 1
        counter.times += 1
        self._dead += is_dead

    def _made(self, table: dict[_K, Counter], key: _K) -> Counter:
        counter = Counter(self._clock.monotonic_ms())
        if self.counter_count < COUNTERS_MAX:
            table[key] = counter
        return counter

    @property
    def counter_count(self) -> int:
        """How many counters of topics and groups there are."""
        return len(self._puts) + len(self._gets) + len(self._send_backs)

    # Coming and going.

    def forget_topic(self, topic: str) -> None:
        """Drop the counters of a topic."""
        self._puts.pop(topic, None)
        for table in (self._gets, self._send_backs):
            for key in [key for key in table if key[0] == topic]:
                del table[key]

    def forget_group(self, group: str) -> None:
        """Drop the counters of a group."""
        for table in (self._gets, self._send_backs):
            for key in [key for key in table if key[1] == group]:
                del table[key]

    def sample(self) -> None:
        """Take samples of all counters, and drop those that have long stood still."""
        for _ in self.sampling():
            pass

    def sampling(self) -> Iterator[None]:
        """The same a part at a time, so that other things can be done between."""
        now_ms = self._clock.monotonic_ms()
        self._put.sample(now_ms)
        self._got.sample(now_ms)
        self._put_times.turn(self._put.nums, now_ms)
        self._history.append(self._totals(now_ms))
        self._turn_day()
        yield from self._sample(self._puts, now_ms)
        yield from self._sample(self._gets, now_ms)
        yield from self._sample(self._send_backs, now_ms)

    @staticmethod
    def _sample(table: dict[_K, Counter], now_ms: int) -> Iterator[None]:
        for number, (key, counter) in enumerate(list(table.items())):
            counter.sample(now_ms)
            if now_ms - counter.changed_at_ms > _IDLE_MS_MAX and table.get(key) is counter:
                del table[key]
            if number % _PART == _PART - 1:
                yield

    def _turn_day(self) -> None:
        today = self._today()
        if today != self._day:
            self._day = today
            self._put_mornings = (self._put_mornings[1], self._put.nums)
            self._got_mornings = (self._got_mornings[1], self._got.nums)

    def _today(self) -> tuple[int, int]:
        local = time.localtime(self._clock.now_ms() / 1000)
        return local.tm_year, local.tm_yday

    # Questions.

    def view(self, name: str, key: str) -> BrokerStatsDataBody | None:
        """One counter over a minute, an hour and a day; None where nothing was counted."""
        counter = self._find(name, key)
        if counter is None:
            return None
        return counter.windows(self._clock.monotonic_ms(), sizes=name.endswith("_SIZE"))

    def _find(self, name: str, key: str) -> Counter | None:
        if name in ("TOPIC_PUT_NUMS", "TOPIC_PUT_SIZE"):
            return self._puts.get(key)
        topic, _, group = key.partition("@")
        if name in ("GROUP_GET_NUMS", "GROUP_GET_SIZE"):
            return self._gets.get((topic, group))
        if name == "SNDBCK_PUT_NUMS":
            return self._send_backs.get((topic, group))
        if key == self._cluster:
            return {"BROKER_PUT_NUMS": self._put, "BROKER_GET_NUMS": self._got}.get(name)
        return None

    def get_rate(self, group: str, topic: str) -> float:
        """How many messages a second a group has got of a topic in the last minute."""
        counter = self._gets.get((topic, group))
        if counter is None:
            return 0.0
        return _figures(
            counter.minute, counter.now(self._clock.monotonic_ms()), _MINUTE, sizes=False
        ).tps

    def runtime_items(self) -> dict[str, str]:
        """The figures of the whole broker, under the names that operators' tools look for."""
        self._turn_day()
        put = self._put
        return {
            "putMessageTimesTotal": str(put.nums),
            "putMessageFailedTimes": str(self._refused),
            "putMessageSizeTotal": str(put.size_bytes),
            "putMessageAverageSize": str(put.size_bytes / put.nums if put.nums else 0.0),
            "putMessageEntireTimeMax": str(self._put_times.longest_ms),
            "putMessageDistributeTime": self._put_times.shares(put.nums),
            "putLatency99": f"{self._put_times.percentile_ms(0.99, put.nums):.2f}",
            "putLatency999": f"{self._put_times.percentile_ms(0.999, put.nums):.2f}",
            "putTps": self._rates("put"),
            "getFoundTps": self._rates("found"),
            "getMissTps": self._rates("missed"),
            "getTotalTps": self._rates("found", "missed"),
            "getTransferedTps": self._rates("transferred"),
            "msgPutTotalYesterdayMorning": str(self._put_mornings[0]),
            "msgPutTotalTodayMorning": str(self._put_mornings[1]),
            "msgPutTotalTodayNow": str(put.nums),
            "msgGetTotalYesterdayMorning": str(self._got_mornings[0]),
            "msgGetTotalTodayMorning": str(self._got_mornings[1]),
            "msgGetTotalTodayNow": str(self._got.nums),
        }

    def _totals(self, now_ms: int) -> _Totals:
        return _Totals(now_ms, self._put.nums, self._found, self._missed, self._got.nums)

    def _rates(self, *names: str) -> str:
        """Three rates, over the last 10 s, minute and 10 minutes, as far as samples reach."""
        now = self._totals(self._clock.monotonic_ms())
        rates = []
        for back_ms in _RATES_MS:
            # The newest sample that is old enough, so that a rate is never of a mere moment.
            then = self._history[0]
            for sample in reversed(self._history):
                if now.at_ms - sample.at_ms >= back_ms:
                    then = sample
                    break
            total = sum(getattr(now, name) - getattr(then, name) for name in names)
            rates.append(total * 1000 / max(SAMPLE_MS, now.at_ms - then.at_ms))
        return " ".join(map(str, rates))


class Both(Observer):
    """Tells two observers."""

    def __init__(self, first: Observer, second: Observer) -> None:
        self._each = (first, second)

    def stored(self, topic: str, count: int, size_bytes: int) -> None:
        for one in self._each:
            one.stored(topic, count, size_bytes)

    def waited(self, count: int, waited_ms: int) -> None:
        for one in self._each:
            one.waited(count, waited_ms)

    def refused(self, cause: str) -> None:
        for one in self._each:
            one.refused(cause)

    def delivered(self, group: str, topic: str, queue_id: int, count: int, size_bytes: int) -> None:
        for one in self._each:
            one.delivered(group, topic, queue_id, count, size_bytes)

    def missed(self, group: str, topic: str, queue_id: int) -> None:
        for one in self._each:
            one.missed(group, topic, queue_id)

    def sent_back(self, group: str, topic: str, *, is_dead: bool) -> None:
        for one in self._each:
            one.sent_back(group, topic, is_dead=is_dead)
