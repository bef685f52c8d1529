"""FilterTable: the SQL92 expressions of consumer groups, and how pulls use them.

A heartbeat registers what a group wants of a topic. The expression is compiled once; a pull then
evaluates it for each message, by the properties in the record. With enableCalcFilterBitMap and
enableConsumeQueueExt it is evaluated once more, when the message is dispatched: the bits of every
group that wants it go into the queue's ext file, and a pull whose bits are missing there does not
look at the record.

    a group's filter     register(): by a heartbeat, from its born time on; a higher client version
                         with another expression replaces it, and is born then
    dead                 the group is gone, or does not subscribe the topic any more
    removed              filterDataCleanTimeSpan after its death, or when its expression is wrong
    bits decide          only for messages stored after the filter was born, and with as many bits
                         as are in use now; for all others the expression is evaluated

The bits of dead filters are still worked out, so that a group that comes back finds them. Losing
the table, or a bit map, loses no message and shows none too many: the expression always decides.

RocketMQ serves every member of a group by the group's expression. Here each member has its own;
bits are used where it is also the group's.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterable
from typing import Final

from ..clock import Clock
from ..errors import BrokerError, InvalidExpression
from ..filter import SQL92, SqlExpression
from ..filter.bloom import BloomFilter
from ..model.group import Subscription
from ..model.message import Property
from ..model.topic import RETRY_PREFIX
from ..protocol.bodies import ConsumerFilterData, ConsumerFilterTable
from ..protocol.codes import ResponseCode
from ..protocol.properties import LazyProperties, parse_properties
from ..protocol.record import DispatchInfo, properties_text
from ..store import ExtUnit, MessageFilter
from .config import LiveConfig
from .filter_scan import scanner_of
from .filter_server import PYTHON, FilterServer
from .saved_table import SavedTable, SmallFiles

logger = logging.getLogger(__name__)

TAG: Final = "TAG"
FILTERS_MAX: Final = 10_000  # Of all groups and topics together.
EXPRESSIONS_KEPT_MAX: Final = 1_000
# A pull looks at fewer messages the longer its expression is, and goes on with the next pull, so
# that no consumer can hold up the others; the same for the bits of one message.
PARTS_A_PULL_MAX: Final = 2_000
PARTS_A_PULL_COMPILED_MAX: Final = 8 * PARTS_A_PULL_MAX
RETRIES_A_PULL_MAX: Final = 32  # Each may have an expression of its own.
PARTS_A_MESSAGE_MAX: Final = 10_000
_PRESUMED_DEAD_MS: Final = 30_000
_NAMES_PICKED_MAX: Final = 6  # With more of them it is quicker to read all properties.


def is_by_tags(kind: str | None) -> bool:
    """Whether a subscription of this kind is about tags; nothing said means yes."""
    return not kind or kind == TAG


class GroupFilter:
    """One group's filter for one topic."""

    __slots__ = ("data", "expression", "pulls")

    def __init__(self, data: ConsumerFilterData, expression: SqlExpression) -> None:
        self.data = data
        self.expression = expression
        self.pulls: MessageFilter | None = None  # What its pulls use; made when first asked for.


@dataclasses.dataclass(slots=True)
class FilterFigures:
    """What filtering has cost."""

    evaluated: int = 0  # Expressions worked out for pulls.
    spared: int = 0  # Messages that bits ruled out, unread.
    computed: int = 0  # Expressions worked out for bits.


class FilterTable:
    """All filters."""

    def __init__(self, live: LiveConfig, path: str, files: SmallFiles, clock: Clock) -> None:
        self._live = live
        self._clock = clock
        self._saved = SavedTable(path, files, ConsumerFilterTable)
        config = live.current
        self.bloom = BloomFilter(
            error_percent=config.max_error_rate_of_bloom_filter,
            expected_count=config.expect_consumer_num_use_filter,
        )
        self._topics: dict[str, dict[str, GroupFilter]] = {}
        self._count = 0
        self._is_changed = False
        self._expressions: dict[str, SqlExpression] = {}
        self._own: dict[str, MessageFilter] = {}
        self._retry_filters: dict[str, MessageFilter] = {}
        self.figures = FilterFigures()
        self.predicates: FilterServer | None = None

    # The file.

    def load(self) -> None:
        """Read consumerFilter.json; all of it is left aside where its bits are of another size."""
        body = self._saved.load()
        if body is None:
            return
        if any(
            one.bit_count != self.bloom.bit_count or len(one.positions) != self.bloom.hash_count
            for one in body.filters
        ):
            logger.info("the filters saved have bits of another size, and are not used")
            return
        presumed_ms = self._clock.now_ms() - _PRESUMED_DEAD_MS
        for one in body.filters[:FILTERS_MAX]:
            try:
                expression = self.compiled(one.expression, one.expression_type)
            except InvalidExpression as error:
                logger.warning("group=%s topic=%s filter dropped: %s", one.group, one.topic, error)
                continue
            if not one.is_dead:
                # Nobody has said anything yet. A heartbeat brings it back to life.
                one = dataclasses.replace(one, dead_ms=max(presumed_ms, one.born_ms))
            self._put(one, expression)

    def take_changed(self) -> bytes | None:
        """What save() would write, and from here on nothing is changed; None if nothing is."""
        self._clean()
        if not self._is_changed:
            return None
        self._is_changed = False
        return self._saved.encode(self.body())

    def write(self, content: bytes) -> None:
        """Replace the file by what take_changed() gave; may run on another thread."""
        try:
            self._saved.write(content)
        except BaseException:
            self._is_changed = True
            raise

    def save(self) -> None:
        """Save what changed since the last time; durable when this returns."""
        content = self.take_changed()
        if content is not None:
            self.write(content)

    def body(self) -> ConsumerFilterTable:
        """The table as its file has it."""
        return ConsumerFilterTable(
            tuple(one.data for groups in self._topics.values() for one in groups.values())
        )

    # Groups.

    def register(self, group: str, subscriptions: Iterable[Subscription]) -> None:
        """Take note of what a group wants, all of it."""
        if not self._live.current.enable_property_filter and not self._count:
            return
        topics = set()
        for one in subscriptions:
            topics.add(one.topic)
            if one.expression and one.expression_type not in ("", TAG, PYTHON):
                self._register(group, one)
        for topic, groups in self._topics.items():
            if topic not in topics:
                self._bury(groups.get(group))

    def _register(self, group: str, wanted: Subscription) -> None:
        known = self._topics.get(wanted.topic, {}).get(group)
        if known is not None:
            data = known.data
            is_same = (data.expression, data.expression_type) == (
                wanted.expression,
                wanted.expression_type,
            )
            if wanted.version <= data.client_version:
                if wanted.version == data.client_version and data.is_dead:
                    self._change(known, dead_ms=0)
                return
            if is_same:
                self._change(known, client_version=wanted.version, dead_ms=0)
                return
        try:
            expression = self.compiled(wanted.expression, wanted.expression_type)
        except InvalidExpression as error:
            logger.warning("group=%s topic=%s filter refused: %s", group, wanted.topic, error)
            self._remove(wanted.topic, group)
            return
        if known is None and self._count >= FILTERS_MAX:
            logger.warning(
                "group=%s topic=%s filter refused: there are %d",
                group, wanted.topic, self._count,
            )  # fmt: skip
            return
        data = ConsumerFilterData(
            topic=wanted.topic,
            group=group,
            expression=wanted.expression,
            expression_type=wanted.expression_type,
            born_ms=self._clock.now_ms(),
            client_version=wanted.version,
            bit_count=self.bloom.bit_count,
            positions=self.bloom.positions(f"{group}#{wanted.topic}"),
        )
        logger.info("group=%s topic=%s filters by %s", group, wanted.topic, wanted.expression)
        if expression.ignored:
            logger.warning(
                "group=%s topic=%s filter: %r at its end has no effect",
                group, wanted.topic, expression.ignored[:80],
            )  # fmt: skip
        self._put(data, expression)

    def unregister(self, group: str) -> None:
        """A group has no members any more."""
        for groups in self._topics.values():
            self._bury(groups.get(group))

    def get(self, topic: str, group: str) -> GroupFilter | None:
        """A group's filter for a topic."""
        return self._topics.get(topic, {}).get(group)

    def _put(self, data: ConsumerFilterData, expression: SqlExpression) -> None:
        groups = self._topics.setdefault(data.topic, {})
        self._count += data.group not in groups
        groups[data.group] = GroupFilter(data, expression)
        self._is_changed = True

    def _change(self, one: GroupFilter, **changes: int) -> None:
        one.data = dataclasses.replace(one.data, **changes)  # type: ignore[arg-type]
        self._is_changed = True

    def _bury(self, one: GroupFilter | None) -> None:
        if one is not None and not one.data.is_dead:
            self._change(one, dead_ms=max(self._clock.now_ms(), one.data.born_ms))

    def _remove(self, topic: str, group: str) -> None:
        groups = self._topics.get(topic, {})
        if groups.pop(group, None) is not None:
            self._count -= 1
            self._is_changed = True
        if not groups:
            self._topics.pop(topic, None)

    def _clean(self) -> None:
        span_ms = self._live.current.filter_data_clean_time_span
        before_ms = self._clock.now_ms() - span_ms
        for topic, groups in list(self._topics.items()):
            for group, one in list(groups.items()):
                if one.data.is_dead and one.data.dead_ms <= before_ms:
                    logger.info("group=%s topic=%s filter forgotten", group, topic)
                    self._remove(topic, group)

    # Expressions.

    def compiled(self, text: str, kind: str) -> SqlExpression:
        """An expression, understood; raises InvalidExpression."""
        if kind != SQL92:
            raise InvalidExpression(text, f"is of type {kind[:32]!r}; TAG and SQL92 are known")
        known = self._expressions.get(text)
        if known is None:
            known = SqlExpression(text)
            if len(self._expressions) >= EXPRESSIONS_KEPT_MAX:
                self._expressions.clear()
            self._expressions[text] = known
        return known

    def check(self, text: str, kind: str) -> None:
        """Refuse what a consumer could not use; raises BrokerError or InvalidExpression."""
        if kind == PYTHON and self.predicates is not None:
            self.predicates.require(text)
            return
        self.require_enabled(kind)
        self.compiled(text, kind)

    def require_enabled(self, kind: str) -> None:
        """Refuse expressions while they are switched off."""
        if not self._live.current.enable_property_filter:
            raise BrokerError(
                ResponseCode.SYSTEM_ERROR,
                f"The broker does not support consumer to filter message by {kind[:32]}; "
                "set enablePropertyFilter=true",
            )

    # Pulls.

    def of_pull(self, topic: str, group: str, text: str, kind: str) -> MessageFilter:
        """The filter of a pull that brings its own expression; raises BrokerError."""
        if kind == PYTHON and self.predicates is not None:
            return self.predicates.of_pull(text)
        self.require_enabled(kind)
        known = self.get(topic, group)
        if known is not None and known.data.expression == text:
            return self._of_group(known)
        own = self._own.get(text) if kind == SQL92 else None
        if own is None:
            try:
                expression = self.compiled(text, kind)
            except InvalidExpression as error:
                raise BrokerError(
                    ResponseCode.SUBSCRIPTION_PARSE_FAILED,
                    f"parse the consumer's subscription failed: {error}",
                ) from None
            skip = self._skip(expression)
            own = MessageFilter(
                record=self._record_test(expression),
                entries_max=_entries_max(expression, is_compiled=skip is not None),
                skip=skip,
            )
            if len(self._own) >= EXPRESSIONS_KEPT_MAX:
                self._own.clear()
            self._own[text] = own
        return own

    def of_subscription(self, group: str, wanted: Subscription, version: int) -> MessageFilter:
        """The filter of a pull that goes by the heartbeats; raises BrokerError."""
        if wanted.expression_type == PYTHON:
            return self.of_pull(wanted.topic, group, wanted.expression, PYTHON)
        known = self.get(wanted.topic, group)
        if known is None:
            self.require_enabled(wanted.expression_type)
            raise BrokerError(
                ResponseCode.FILTER_DATA_NOT_EXIST,
                "The broker's consumer filter data is not exist!Your expression may be wrong!",
            )
        if known.data.client_version < version:
            raise BrokerError(
                ResponseCode.FILTER_DATA_NOT_LATEST,
                "the consumer's consumer filter data not latest",
            )
        return self.of_pull(wanted.topic, group, wanted.expression, wanted.expression_type)

    def of_retries(self, topic: str) -> MessageFilter | None:
        """The filter of pulls from a retry topic, if filterSupportRetry asks for one."""
        if not self._live.current.filter_support_retry or not topic.startswith(RETRY_PREFIX):
            return None
        known = self._retry_filters.get(topic)
        if known is None:
            if len(self._retry_filters) >= FILTERS_MAX:
                self._retry_filters.clear()
            known = self._retry_filters[topic] = MessageFilter(
                record=self._retry_test(topic.removeprefix(RETRY_PREFIX)),
                entries_max=RETRIES_A_PULL_MAX,
            )
        return known

    def _of_group(self, one: GroupFilter) -> MessageFilter:
        if one.pulls is None:
            skip = self._skip(one.expression)
            one.pulls = MessageFilter(
                entry=self._entry_test(one),
                record=self._record_test(one.expression),
                entries_max=_entries_max(one.expression, is_compiled=skip is not None),
                skip=skip,
            )
        return one.pulls

    def _entry_test(self, one: GroupFilter) -> Callable[[int, ExtUnit | None], bool]:
        bloom, figures = self.bloom, self.figures
        born_ms, positions = one.data.born_ms, one.data.positions
        bytes_wanted = bloom.bit_count // 8

        def may_want(_code: int, unit: ExtUnit | None) -> bool:
            if unit is None or unit.stored_at_ms <= born_ms or len(unit.bitmap) != bytes_wanted:
                return True
            if bloom.has_bits(unit.bitmap, positions):
                return True
            figures.spared += 1
            return False

        return may_want

    def _record_test(self, expression: SqlExpression) -> Callable[[memoryview], bool]:
        figures, matches = self.figures, expression.matches
        names = tuple(sorted(expression.names))
        read = _reader(names) if len(names) <= _NAMES_PICKED_MAX else parse_properties

        def wants(record: memoryview) -> bool:
            figures.evaluated += 1
            return matches(read(properties_text(record)))

        return wants

    def _skip(
        self, expression: SqlExpression
    ) -> Callable[[memoryview, int, int, memoryview, int], int] | None:
        scanner = scanner_of(expression)
        if scanner is None or self._live.current.enable_consume_queue_ext:
            return None  # With ext files the bits are asked first, entry by entry.
        figures, passed_over = self.figures, scanner.skip

        def skip(
            entries: memoryview, at: int, end: int, buffer: memoryview, file_start: int
        ) -> int:
            count = passed_over(entries, at, end, buffer, file_start)
            figures.evaluated += count
            return count

        return skip

    def _retry_test(self, group: str) -> Callable[[memoryview], bool]:
        def wants(record: memoryview) -> bool:
            properties = parse_properties(properties_text(record))
            one = self.get(properties.get(Property.RETRY_TOPIC, ""), group)
            if one is None:
                return True
            self.figures.evaluated += 1
            return one.expression.matches(properties)

        return wants

    # Bits.

    def bitmap_of(self, info: DispatchInfo) -> bytes:
        """The bits of every group that wants a message; empty where there is nothing to say."""
        groups = self._topics.get(info.topic)
        if not groups or not self._live.current.enable_calc_filter_bit_map:
            return b""
        if sum(one.expression.part_count for one in groups.values()) > PARTS_A_MESSAGE_MAX:
            return b""  # The pulls will work it out, each at its own cost.
        properties = _parsed(info)
        bits = bytearray(self.bloom.bit_count // 8)
        for one in groups.values():
            self.figures.computed += 1
            if one.expression.matches(properties):
                self.bloom.set_bits(bits, one.data.positions)
        return bytes(bits)


def _entries_max(expression: SqlExpression, *, is_compiled: bool) -> int:
    parts_max = PARTS_A_PULL_COMPILED_MAX if is_compiled else PARTS_A_PULL_MAX
    return max(1, parts_max // expression.part_count)


def _reader(names: tuple[str, ...]) -> Callable[[bytes], dict[str, str]]:
    """What finds a few properties in a text, and does not look at the others."""
    marks = [(name, f"\x02{name}\x01".encode()) for name in names]

    def read(text: bytes) -> dict[str, str]:
        found = {}
        text = b"\x02" + text
        for name, mark in marks:
            at = text.rfind(mark)
            while at >= 0:
                start = at + len(mark)
                end = text.find(b"\x02", start)
                value = text[start:] if end < 0 else text[start:end]
                if value:  # An empty value is none, and the one before it counts.
                    found[name] = value.decode("utf-8", "replace")
                    break
                at = text.rfind(mark, 0, start - 1)
        return found

    return read


def _parsed(info: DispatchInfo) -> dict[str, str]:
    properties = info.properties
    if isinstance(properties, LazyProperties):
        return parse_properties(properties.text)
    return dict(properties)
