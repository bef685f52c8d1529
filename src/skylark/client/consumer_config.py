"""ConsumerConfig: how one consumer works. Names and defaults are those of RocketMQ 4.9.8.

Java's setter                     here
consumeThreadMin, …Max            concurrency: handlers at a time, coroutines or threads
consumeMessageBatchMaxSize        consume_batch_size
pullThresholdForQueue             pull_threshold_for_queue
pullThresholdSizeForQueue (MiB)   pull_threshold_bytes_for_queue
consumeTimeout (minutes)          consume_timeout_ms
maxReconsumeTimes -1              max_reconsume_times None: 16, or for ever if orderly
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from ..errors import ConfigError
from ..model.group import MessageModel
from ..model.topic import TRACE_TOPIC
from .allocation import AllocationStrategy, Averagely
from .process_queue import FlowLimits

RECONSUME_TIMES_MAX: Final = 16
ENDLESS: Final = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig:
    """Settings of one consumer."""

    message_model: MessageModel = MessageModel.CLUSTERING
    orderly: bool = False  # One message of a queue at a time, in order, under a lock.
    strategy: AllocationStrategy = field(default_factory=Averagely)
    rebalance_interval_ms: int = 20_000
    handover_ms: int = 150  # How long a new owner leaves to the old one for its last commit.
    # Handling.
    concurrency: int = 20
    consume_batch_size: int = 1  # Most messages in one call of a batch handler.
    max_reconsume_times: int | None = None
    suspend_ms: int = 1_000  # How long an orderly queue waits after a failure.
    retry_here_ms: int = 5_000  # When the broker did not take a failed message back.
    consume_timeout_ms: int | None = 900_000  # Concurrent: then it is sent back. None: never.
    slow_handler_ms: int = 30_000  # A handler that takes longer is mentioned in the log.
    rate_max: float | None = None  # Messages per second; bursts are spread out.
    close_timeout_ms: int = 30_000  # How long running handlers may take when it closes.
    # Pulling.
    pull_batch_size: int = 32
    pull_interval_ms: int = 0
    pull_retry_ms: int = 1_000  # After an error.
    pull_suspend_ms: int = 15_000  # How long the broker may hold an empty pull.
    pull_timeout_ms: int = 30_000
    pull_threshold_for_queue: int = 1_000
    pull_threshold_bytes_for_queue: int = 100 << 20
    consume_concurrently_max_span: int = 2_000
    # Traces.
    enable_msg_trace: bool = False
    trace_topic: str = TRACE_TOPIC
    # Broadcasting.
    offsets_folder: str = "~/.rocketmq_offsets"

    def __post_init__(self) -> None:
        for name, low, high in (
            ("concurrency", 1, 10_000),
            ("consume_batch_size", 1, 1_024),
            ("pull_batch_size", 1, 1_024),
            ("pull_threshold_for_queue", 1, 65_535),
            ("pull_threshold_bytes_for_queue", 1, 1 << 40),
            ("consume_concurrently_max_span", 1, 65_535),
            ("pull_interval_ms", 0, 65_535),
            ("pull_retry_ms", 1, 600_000),
            ("pull_suspend_ms", 0, 600_000),
            ("pull_timeout_ms", 1, 3_600_000),
            ("suspend_ms", 1, 3_600_000),
            ("retry_here_ms", 1, 3_600_000),
            ("rebalance_interval_ms", 10, 3_600_000),
            ("handover_ms", 0, 60_000),
            ("close_timeout_ms", 0, 3_600_000),
            ("slow_handler_ms", 1, 2**31),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise ConfigError(f"{name} {value}: choose {low} to {high}")
        if self.max_reconsume_times is not None and self.max_reconsume_times < 0:
            raise ConfigError(
                "max_reconsume_times may not be negative; None stands for the default"
            )
        if self.consume_timeout_ms is not None and self.consume_timeout_ms < 1:
            raise ConfigError("consume_timeout_ms is milliseconds above zero, or None for never")
        if self.rate_max is not None and self.rate_max <= 0:
            raise ConfigError("rate_max is messages per second above zero, or None for no limit")
        if self.pull_timeout_ms <= self.pull_suspend_ms:
            raise ConfigError("pull_timeout_ms must be longer than pull_suspend_ms")

    @property
    def reconsume_times_max(self) -> int:
        """How often a message is tried again before it is given up."""
        if self.max_reconsume_times is not None:
            return self.max_reconsume_times
        return ENDLESS if self.orderly else RECONSUME_TIMES_MAX

    @property
    def limits(self) -> FlowLimits:
        """How much of a queue may be in hand."""
        return FlowLimits(
            count_max=self.pull_threshold_for_queue,
            bytes_max=self.pull_threshold_bytes_for_queue,
            span_max=None if self.orderly else self.consume_concurrently_max_span,
        )

    @property
    def is_broadcasting(self) -> bool:
        """Whether every member gets every message."""
        return self.message_model is MessageModel.BROADCASTING
