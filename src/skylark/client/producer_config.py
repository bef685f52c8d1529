"""ProducerConfig: the settings of one producer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ..errors import ConfigError
from ..model.message import CompressionType
from ..model.names import check_group_name
from ..model.topic import AUTO_CREATE_TOPIC, TRACE_TOPIC
from ..protocol.compression import COMPRESS_FROM_BYTES
from .latency import POLICY_4_9, LatencyPolicy
from .outgoing import MESSAGE_BYTES_MAX

DEFAULT_GROUP: Final = "DEFAULT_PRODUCER"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig:
    """Settings of one producer; the names are RocketMQ's, the defaults 4.9.8's."""

    group: str
    create_topic_key: str = AUTO_CREATE_TOPIC
    default_topic_queue_nums: int = 4
    send_msg_timeout_ms: int = 3_000
    compress_msg_body_over_howmuch: int = COMPRESS_FROM_BYTES
    compression: CompressionType = CompressionType.ZLIB
    max_message_size: int = MESSAGE_BYTES_MAX
    retry_times_when_send_failed: int = 2
    retry_times_when_send_async_failed: int = 2
    retry_async_on_same_broker: bool = False
    retry_another_broker_when_not_store_ok: bool = False
    retry_system_busy: bool = False
    busy_backoff_ms: int = 100  # Doubled at each further refusal.
    send_latency_fault_enable: bool = False
    latency_policy: LatencyPolicy = POLICY_4_9
    linger_ms: float | None = None  # None sends each message alone; 0 joins those of one moment.
    batch_bytes_max: int = 128 * 1024
    buffer_bytes_max: int = 32 * 1024 * 1024
    check_request_hold_max: int = 2_000  # Checks under way at once; others are asked again.
    enable_msg_trace: bool = False
    trace_topic: str = TRACE_TOPIC

    def __post_init__(self) -> None:
        check_group_name(self.group)
        if self.group == DEFAULT_GROUP:
            raise ConfigError(f"a producer group may not be called {DEFAULT_GROUP}; name it")
        for name in ("send_msg_timeout_ms", "default_topic_queue_nums", "max_message_size"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} {getattr(self, name)} is too small; use 1 or more")
        for name in ("retry_times_when_send_failed", "retry_times_when_send_async_failed"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} may not be negative; use 0 for no retry")
        if self.linger_ms is not None and self.linger_ms < 0:
            raise ConfigError("linger_ms may not be negative; use None to send messages singly")
        if self.batch_bytes_max < 1 or self.buffer_bytes_max < self.batch_bytes_max:
            raise ConfigError("buffer_bytes_max must be at least batch_bytes_max, and that 1")
