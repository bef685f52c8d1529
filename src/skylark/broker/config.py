"""BrokerConfig: every setting of a broker, under RocketMQ's names.

One flat schema, as broker.conf is one flat file. What the store and the network need is handed to
them by store_config() and NetConfig.of(); their parts see nothing else of it. Keys that tune
RocketMQ's thread pools are accepted without effect (see config/rocketmq_keys.py).
"""

from __future__ import annotations

import dataclasses
import os
from typing import ClassVar

from ..config import ServerSettings, setting
from ..errors import ConfigError, InvalidName
from ..model.names import check_topic_name
from ..store.config import DELAY_LEVELS, FlushDiskType, StoreConfig
from .raft_members import find_member, read_members

LISTEN_PORT = 10911
FAST_PORT_STEP = -2
HA_PORT_STEP = 1
LOG_FILE_NAME = "broker.log"

_KIB = 1024
_MIB = 1024 * 1024
_GIB = 1024 * _MIB
_DAY_MS = 24 * 3_600_000
_INT_MAX = 2**31 - 1
_LONG_MAX = 2**63 - 1

# RocketMQ's broker answers these too. They have no meaning here; tools that list or compare
# settings expect to find them.
_INERT_KEYS = (
    "sendMessageThreadPoolNums",
    "putMessageFutureThreadPoolNums",
    "pullMessageThreadPoolNums",
    "processReplyMessageThreadPoolNums",
    "queryMessageThreadPoolNums",
    "adminBrokerThreadPoolNums",
    "clientManageThreadPoolNums",
    "consumerManageThreadPoolNums",
    "heartbeatThreadPoolNums",
    "endTransactionThreadPoolNums",
    "sendThreadPoolQueueCapacity",
    "pullThreadPoolQueueCapacity",
    "replyThreadPoolQueueCapacity",
    "queryThreadPoolQueueCapacity",
    "clientManagerThreadPoolQueueCapacity",
    "consumerManagerThreadPoolQueueCapacity",
    "heartbeatThreadPoolQueueCapacity",
    "endTransactionPoolQueueCapacity",
    "useReentrantLockWhenPutMessage",
    "serverWorkerThreads",
    "serverCallbackExecutorThreads",
    "serverSelectorThreads",
    "serverSocketBacklog",
    "useEpollNativeSelector",
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig(ServerSettings):
    """The settings of a broker."""

    component: ClassVar[str] = "broker"
    inert_keys: ClassVar[tuple[str, ...]] = _INERT_KEYS

    # Who it is.

    broker_cluster_name: str = setting(
        "DefaultCluster", "The cluster it belongs to.", rocketmq_default="DefaultCluster"
    )
    broker_name: str = setting(
        "",
        "Name of the master and its replicas; empty stands for the host name.",
        rocketmq_key="brokerName",
    )
    broker_id: int = setting(
        0, "0 for the master, above for replicas.", at_least=0, at_most=_INT_MAX, rocketmq_default=0
    )
    broker_ip1: str = setting(
        "",
        "The address that clients are told to connect to; empty stands for this machine's own.",
        key="brokerIP1",
        rocketmq_key="brokerIP1",
    )
    broker_ip2: str = setting(
        "",
        "The address that replicas are told to connect to; empty stands for brokerIP1.",
        key="brokerIP2",
        rocketmq_key="brokerIP2",
    )
    broker_role: str = setting(
        "ASYNC_MASTER",
        "SYNC_MASTER answers when a replica has the message, ASYNC_MASTER before; SLAVE copies.",
        choices=("ASYNC_MASTER", "SYNC_MASTER", "SLAVE"),
        rocketmq_default="ASYNC_MASTER",
    )
    region_id: str = setting(
        "DefaultRegion",
        "The region that answers to sends carry, for traces.",
        rocketmq_default="DefaultRegion",
    )
    broker_config_path: str = setting(
        "",
        "File that settings changed by request are written to; with `-c FILE` it is that file.",
        path=True,
        rocketmq_key="brokerConfigPath",
    )
    config_black_list: str = setting(
        "configBlackList;brokerConfigPath",
        "Keys that no request may change, joined by `;`; it narrows what is allowed, never widens.",
        rocketmq_default="configBlackList;brokerConfigPath",
    )

    # Name servers.

    namesrv_addr: str = setting(
        "",
        "Name servers to register with, as `host:port;host:port`; empty registers nowhere.",
        rocketmq_key="namesrvAddr",
        env=("NAMESRV_ADDR",),
    )
    fetch_namesrv_addr_by_address_server: bool = setting(
        False,
        "Without namesrvAddr, ask an address service by HTTP where the name servers are, every "
        "two minutes.",
        rocketmq_default=False,
    )
    namesrv_domain: str = setting(
        "",
        "Host, or host:port, of that service; empty stands for jmenv.tbsite.net:8080.",
        rocketmq_key="rocketmq.namesrv.domain",
    )
    namesrv_domain_subgroup: str = setting(
        "",
        "Last word of its path; empty stands for nsaddr.",
        rocketmq_key="rocketmq.namesrv.domain.subgroup",
    )
    register_name_server_period: int = setting(
        30_000,
        "How often it registers again, in ms.",
        at_least=10_000,
        at_most=60_000,
        rocketmq_default=30_000,
    )
    register_broker_timeout_mills: int = setting(
        6_000,
        "How long one registration may take.",
        at_least=100,
        at_most=_DAY_MS,
        rocketmq_default=6_000,
    )
    force_register: bool = setting(
        True,
        "Register fully each time; else only when a name server has an older table.",
        rocketmq_default=True,
    )
    compressed_register: bool = setting(
        False, "Send the topic table compressed.", rocketmq_default=False
    )
    advertised_address_check: bool = setting(
        True, "Dial the advertised address at the start, and say so when it does not lead here."
    )

    # Topics and groups.

    auto_create_topic_enable: bool = setting(
        True,
        "Make a topic when the first message is sent to it.",
        hot=True,
        remote=True,
        rocketmq_default=True,
    )
    default_topic_queue_nums: int = setting(
        8,
        "Queues of a topic made that way, at most.",
        at_least=1,
        at_most=65_536,
        rocketmq_default=8,
    )
    topic_queue_nums_max: int = setting(
        4_096, "Most queues that a topic may have.", at_least=1, at_most=65_536
    )
    cluster_topic_enable: bool = setting(
        True, "Let the topic named after the cluster be used.", rocketmq_default=True
    )
    broker_topic_enable: bool = setting(
        True, "Let the topic named after the broker be used.", rocketmq_default=True
    )
    trace_topic_enable: bool = setting(
        False, "Make the topic of message traces at the start.", rocketmq_default=False
    )
    msg_trace_topic_name: str = setting(
        "RMQ_SYS_TRACE_TOPIC",
        "The topic of message traces.",
        rocketmq_default="RMQ_SYS_TRACE_TOPIC",
    )
    trace_on: bool = setting(
        True, "Tell clients that traces are wanted.", hot=True, remote=True, rocketmq_default=True
    )
    auto_create_subscription_group: bool = setting(
        True,
        "Make a consumer group when it is first used.",
        hot=True,
        remote=True,
        rocketmq_default=True,
    )
    broker_permission: int = setting(
        6,
        "What may be done here: 6 read and write, 4 read, 2 write.",
        at_least=0,
        at_most=7,
        hot=True,
        remote=True,
        rocketmq_default=6,
    )

    # Sends.

    max_message_size: int = setting(
        4 * _MIB,
        "Largest body of a message, in bytes.",
        at_least=1,
        at_most=_GIB,
        rocketmq_default=4 * _MIB,
    )
    message_delay_level: str = setting(
        DELAY_LEVELS, "The delay of each level.", rocketmq_default=DELAY_LEVELS
    )
    reject_transaction_message: bool = setting(
        False,
        "Refuse transactional messages.",
        hot=True,
        remote=True,
        rocketmq_default=False,
    )
    transaction_time_out: int = setting(
        6_000,
        "How old a half message must be before its producer is asked about it, in ms.",
        at_least=1,
        at_most=_DAY_MS,
        hot=True,
        remote=True,
        rocketmq_default=6_000,
    )
    transaction_check_interval: int = setting(
        60_000,
        "How long after one check of a half message the next one is made, in ms.",
        at_least=1,
        at_most=_DAY_MS,
        hot=True,
        remote=True,
        rocketmq_default=60_000,
    )
    transaction_check_max: int = setting(
        15,
        "After so many checks a half message is put aside, in TRANS_CHECK_MAX_TIME_TOPIC.",
        at_least=1,
        at_most=1_000_000,
        hot=True,
        remote=True,
        rocketmq_default=15,
    )
    start_accept_send_request_time_stamp: int = setting(
        0,
        "Refuse sends before this wall time, in ms.",
        at_least=0,
        at_most=_LONG_MAX,
        rocketmq_default=0,
    )
    store_reply_message_enable: bool = setting(
        True,
        "Keep the replies of request-reply in their topic.",
        hot=True,
        remote=True,
        rocketmq_default=True,
    )
    reply_timeout_ms: int = setting(
        10_000, "How long a requester may take to accept a reply.", at_least=1, at_most=_DAY_MS
    )
    broker_fast_failure_enable: bool = setting(
        True,
        "Refuse sends while the disk cannot follow.",
        hot=True,
        remote=True,
        rocketmq_default=True,
    )
    wait_time_mills_in_send_queue: int = setting(
        200,
        "A send that has waited longer than this before it was looked at is refused.",
        at_least=1,
        at_most=_DAY_MS,
        hot=True,
        remote=True,
        rocketmq_default=200,
    )
    os_page_cache_busy_time_out_mills: int = setting(
        1_000,
        "Sends are refused while a flush that senders wait for takes longer than this.",
        at_least=1,
        at_most=_DAY_MS,
        hot=True,
        remote=True,
        rocketmq_default=1_000,
    )
    waiting_sends_max: int = setting(
        10_000,
        "Sends that may wait for the disk at once; further ones are refused.",
        at_least=1,
        at_most=_INT_MAX,
    )

    # Pulls and clients.

    long_polling_enable: bool = setting(
        True,
        "Hold a pull that finds nothing until something arrives.",
        hot=True,
        remote=True,
        rocketmq_default=True,
    )
    short_polling_time_mills: int = setting(
        1_000,
        "How long such a pull is held with long polling off.",
        at_least=1,
        at_most=30_000,
        hot=True,
        remote=True,
        rocketmq_default=1_000,
    )
    suspend_timeout_ms_max: int = setting(
        30_000, "The longest that a pull is held.", at_least=1_000, at_most=_DAY_MS
    )
    held_pulls_max: int = setting(
        100_000, "Pulls held at once; further ones are refused.", at_least=1, at_most=_INT_MAX
    )
    held_pulls_per_peer_max: int = setting(
        16_384,
        "Pulls of one connection held at once; further ones are refused.",
        at_least=1,
        at_most=_INT_MAX,
    )
    retention_waits_for_group: str = setting(
        "",
        "A consumer group, such as an archive's: what it has not read yet is not deleted when it "
        "expires, only when the disk is full.",
    )
    retention_wait_for_archive: bool = setting(
        False,
        "What `skylark pipeline archive` has not copied yet is not deleted when it expires, only "
        "when the disk is full: as retentionWaitsForGroup with the group skylark-archive.",
        hot=True,
        remote=True,
        key="retention.wait_for_archive",
    )
    staged_rows_timeout_hours: int = setting(
        168,
        "Rows of a job that its driver has not decided about are rolled back after so many hours.",
        at_least=1,
        at_most=8_760,
    )
    bulk_pull_bytes_max: int = setting(
        4 * _MIB,
        "Most bytes in the answer to a pull that asks for more than the ordinary limits by its "
        "maxMsgBytes, as jobs do that read whole topics.",
        at_least=65_536,
        at_most=12 * _MIB,
    )
    transfer_msg_by_heap: bool = setting(
        True, "Kept for tools; records are copied where that is cheaper.", rocketmq_default=True
    )
    slave_read_enable: bool = setting(
        False,
        "Send readers of old messages to a replica.",
        hot=True,
        remote=True,
        rocketmq_default=False,
    )
    enable_property_filter: bool = setting(
        False,
        "Let consumers filter by SQL92 expressions.",
        hot=True,
        remote=True,
        rocketmq_default=False,
    )
    filter_support_retry: bool = setting(
        False,
        "Filter messages that are retried by the expression for their first topic.",
        hot=True,
        remote=True,
        rocketmq_default=False,
    )
    filter_data_clean_time_span: int = setting(
        _DAY_MS,
        "How long the expression of a group that is gone is kept.",
        at_least=0,
        at_most=_LONG_MAX,
        hot=True,
        remote=True,
        rocketmq_default=_DAY_MS,
    )
    enable_calc_filter_bit_map: bool = setting(
        False,
        "Work out once, for every message, which groups' expressions it passes; "
        "needs enableConsumeQueueExt.",
        hot=True,
        remote=True,
        rocketmq_default=False,
    )
    filter_server_nums: int = setting(
        0,
        "Processes for predicates that an operator uploads, each locked in; 0 switches them off.",
        at_least=0,
        at_most=64,
        rocketmq_default=0,
    )
    filter_server_memory_bytes: int = setting(
        128 * _MIB,
        "Memory that each of these processes may use.",
        at_least=48 * _MIB,
        at_most=16 * _GIB,
    )
    filter_server_timeout_ms: int = setting(
        1_000,
        "How long a predicate may take over one batch of messages before it is stopped.",
        at_least=10,
        at_most=60_000,
    )
    filter_server_access_key: str = setting(
        "", "Who may upload predicates; empty: nobody. Needs filterServerSecretKey."
    )
    filter_server_secret_key: str = setting(
        "", "What uploads of predicates are signed with.", secret=True
    )
    expect_consumer_num_use_filter: int = setting(
        32,
        "How many groups are expected to filter one topic by expressions.",
        at_least=1,
        at_most=4_096,
        rocketmq_default=32,
    )
    max_error_rate_of_bloom_filter: int = setting(
        20,
        "How many messages in a hundred may be looked at in vain because of shared bits.",
        at_least=1,
        at_most=99,
        rocketmq_default=20,
    )
    notify_consumer_ids_changed_enable: bool = setting(
        True,
        "Tell the members of a group when one comes or goes.",
        hot=True,
        remote=True,
        rocketmq_default=True,
    )
    client_expiry_ms: int = setting(
        120_000,
        "A client that has not sent a heartbeat for this long is dropped.",
        at_least=1_000,
        at_most=_DAY_MS,
    )
    client_scan_interval_ms: int = setting(
        10_000, "How often such clients are looked for.", at_least=100, at_most=_DAY_MS
    )
    queue_lock_lease_ms: int = setting(
        60_000,
        "How long a queue lock lasts without renewal.",
        at_least=1_000,
        at_most=_DAY_MS,
        rocketmq_key="rocketmq.broker.rebalance.lockMaxLiveTime",
        rocketmq_default=60_000,
    )
    flush_consumer_offset_interval: int = setting(
        5_000,
        "How often committed offsets are saved, in ms.",
        at_least=100,
        at_most=_DAY_MS,
        rocketmq_default=5_000,
    )
    timer_max_delay_sec: int = setting(
        366 * 86_400,
        "How far ahead a message may say when it is to be delivered, in seconds.",
        at_least=1,
        at_most=366 * 86_400,
        hot=True,
        remote=True,
    )
    timer_flush_interval_ms: int = setting(
        10_000,
        "How often the timer's wheel is saved, in ms; a start reads again what came after that.",
        at_least=10,
        at_most=_DAY_MS,
    )
    mapped_file_size_timer_log: int = setting(
        100 * _MIB,
        "Size of a file of the timer's log; a multiple of 32.",
        at_least=1_024,
        at_most=_GIB,
    )
    flush_delay_offset_interval: int = setting(
        10_000,
        "How often the progress of delayed messages is saved, in ms.",
        at_least=100,
        at_most=_DAY_MS,
        rocketmq_default=10_000,
    )
    default_query_max_num: int = setting(
        32,
        "Most results of a query by unique key.",
        at_least=1,
        at_most=64,
        rocketmq_default=32,
    )
    enable_detail_stat: bool = setting(
        True, "Keep statistics by queue as well.", rocketmq_default=True
    )
    disable_consume_if_consumer_read_slowly: bool = setting(
        False,
        "Stop serving groups that are far behind.",
        rocketmq_default=False,
    )
    consumer_fallbehind_threshold: int = setting(
        16 * _GIB,
        "How many bytes behind that is.",
        at_least=1,
        at_most=_LONG_MAX,
        rocketmq_default=16 * _GIB,
    )

    acl_enable: bool = setting(
        False, "Check who may do what; not available yet.", rocketmq_default=False
    )

    # Store.

    enable_d_leger_commit_log: bool = setting(
        False,
        "Be a member of a Raft group, which chooses its master itself.",
        rocketmq_key="enableDLegerCommitLog",
        rocketmq_default=False,
    )
    store_path_root_dir: str = setting(
        "~/store", "Directory of all data.", path=True, rocketmq_default="~/store"
    )
    store_path_commit_log: str = setting(
        "",
        "Directory of the commit log; empty is commitlog under storePathRootDir.",
        path=True,
        rocketmq_key="storePathCommitLog",
    )
    flush_disk_type: str = setting(
        "ASYNC_FLUSH",
        "SYNC_FLUSH answers a send when it is on the disk, ASYNC_FLUSH before.",
        choices=("ASYNC_FLUSH", "SYNC_FLUSH"),
        rocketmq_default="ASYNC_FLUSH",
    )
    sync_flush_timeout: int = setting(
        5_000,
        "How long a send waits for the disk before it is answered FLUSH_DISK_TIMEOUT.",
        at_least=1,
        at_most=_INT_MAX,
        rocketmq_default=5_000,
    )
    mapped_file_size_commit_log: int = setting(
        _GIB, "Size of a commit log file.", at_least=256, at_most=_INT_MAX, rocketmq_default=_GIB
    )
    mapped_file_size_consume_queue: int = setting(
        6_000_000,
        "Size of a consume queue file.",
        at_least=20,
        at_most=_INT_MAX - 20,
        rocketmq_default=6_000_000,
    )
    enable_consume_queue_ext: bool = setting(
        False, "Keep filter bitmaps beside the consume queues.", rocketmq_default=False
    )
    mapped_file_size_consume_queue_ext: int = setting(
        48 * _MIB,
        "Size of a file of those.",
        at_least=64,
        at_most=_INT_MAX,
        rocketmq_default=48 * _MIB,
    )
    message_index_enable: bool = setting(True, "Index messages by key.", rocketmq_default=True)
    max_hash_slot_num: int = setting(
        5_000_000,
        "Slots of an index file.",
        at_least=1,
        at_most=2**29,
        rocketmq_default=5_000_000,
    )
    max_index_num: int = setting(
        20_000_000,
        "Entries of an index file.",
        at_least=2,
        at_most=2**26,
        rocketmq_default=20_000_000,
    )
    max_msgs_num_batch: int = setting(
        64, "Most results of a query by key.", at_least=1, at_most=1_024, rocketmq_default=64
    )
    flush_interval_commit_log: int = setting(
        500,
        "How often the commit log is flushed with ASYNC_FLUSH, in ms.",
        at_least=1,
        at_most=_DAY_MS,
        rocketmq_default=500,
    )
    flush_commit_log_least_pages: int = setting(
        4,
        "Pages that make such a flush worth while.",
        at_least=0,
        at_most=_INT_MAX,
        rocketmq_default=4,
    )
    flush_commit_log_thorough_interval: int = setting(
        10_000,
        "After this long it is flushed however little there is, in ms.",
        at_least=1,
        at_most=_DAY_MS,
        rocketmq_default=10_000,
    )
    flush_interval_consume_queue: int = setting(
        1_000,
        "How often consume queues are flushed, in ms.",
        at_least=1,
        at_most=_DAY_MS,
        rocketmq_default=1_000,
    )
    flush_consume_queue_least_pages: int = setting(
        2,
        "Pages that make such a flush worth while.",
        at_least=0,
        at_most=_INT_MAX,
        rocketmq_default=2,
    )
    flush_consume_queue_thorough_interval: int = setting(
        60_000,
        "After this long they are flushed however little there is, in ms.",
        at_least=1,
        at_most=_DAY_MS,
        rocketmq_default=60_000,
    )
    transient_store_pool_enable: bool = setting(
        False, "Write through buffers of our own; ignored with SYNC_FLUSH.", rocketmq_default=False
    )
    transient_store_pool_size: int = setting(
        5, "How many such buffers.", at_least=1, at_most=1_024, rocketmq_default=5
    )
    commit_interval_commit_log: int = setting(
        200,
        "How often they are written to the file, in ms.",
        at_least=1,
        at_most=_DAY_MS,
        rocketmq_default=200,
    )
    warm_maped_file_enable: bool = setting(
        False, "Touch the pages of a new file before it is used.", rocketmq_default=False
    )
    access_message_in_memory_max_ratio: int = setting(
        40,
        "Share of the machine's memory, in per cent, that new messages are taken to be in.",
        at_least=1,
        at_most=100,
        rocketmq_default=40,
    )
    max_transfer_bytes_on_message_in_memory: int = setting(
        256 * _KIB,
        "Most bytes that a pull of new messages returns.",
        at_least=1,
        at_most=8 * _MIB,
        hot=False,
        rocketmq_default=256 * _KIB,
    )
    max_transfer_count_on_message_in_memory: int = setting(
        32,
        "Most messages that it returns.",
        at_least=1,
        at_most=1_024,
        rocketmq_default=32,
    )
    max_transfer_bytes_on_message_in_disk: int = setting(
        64 * _KIB,
        "Most bytes that a pull of old messages returns.",
        at_least=1,
        at_most=8 * _MIB,
        rocketmq_default=64 * _KIB,
    )
    max_transfer_count_on_message_in_disk: int = setting(
        8, "Most messages that it returns.", at_least=1, at_most=1_024, rocketmq_default=8
    )
    file_reserved_time: int = setting(
        72,
        "How many hours messages are kept.",
        at_least=0,
        at_most=24 * 365 * 100,
        hot=True,
        remote=True,
        rocketmq_default=72,
    )
    delete_when: str = setting(
        "04",
        "Hours of the day in which expired files go, joined by `;`.",
        hot=True,
        remote=True,
        rocketmq_default="04",
    )
    clean_resource_interval: int = setting(
        10_000,
        "How often expired files are looked for, in ms.",
        at_least=100,
        at_most=_DAY_MS,
        rocketmq_default=10_000,
    )
    disk_max_used_space_ratio: int = setting(
        75,
        "Above this use of the disk, in per cent, expired files go at once.",
        at_least=1,
        at_most=100,
        hot=True,
        remote=True,
        rocketmq_default=75,
    )
    disk_space_clean_forcibly_ratio: int = setting(
        85,
        "Above this, in per cent, files go before they expire.",
        at_least=1,
        at_most=100,
    )
    disk_space_warning_level_ratio: int = setting(
        90, "Above this, in per cent, nothing more is written.", at_least=1, at_most=100
    )
    disk_space_ample_bytes: int = setting(
        0,
        "Those shares count only while fewer than this many bytes are free; 0 always.",
        at_least=0,
        at_most=_LONG_MAX,
    )
    disk_space_reserve_bytes: int = setting(
        0, "Nothing more is written below this many free bytes.", at_least=0, at_most=_LONG_MAX
    )
    clean_file_forcibly_enable: bool = setting(
        True,
        "Let files go before they expire when the disk is full.",
        hot=True,
        remote=True,
        rocketmq_default=True,
    )
    check_crc_on_recover: bool = setting(
        True,
        "Check the bodies of messages after a crash.",
        key="checkCRCOnRecover",
        rocketmq_key="checkCRCOnRecover",
        rocketmq_default=True,
    )
    sums_enable: bool = setting(
        True, "Keep checksums of whole records and of the index in the directory sums."
    )

    # Network.

    listen_port: int = setting(
        LISTEN_PORT,
        "Port to listen on; the port two below serves all but pulls. 0 picks a free one.",
        at_least=0,
        at_most=65_535,
        rocketmq_default=LISTEN_PORT,
    )
    unsent_bytes_max: int = setting(
        4 * _MIB,
        "A peer that leaves more than this unread is closed.",
        at_least=65_536,
        at_most=_GIB,
    )
    held_bytes_max: int = setting(
        256 * _MIB,
        "Unfinished frames of all peers together; the largest is closed beyond it.",
        at_least=_MIB,
        at_most=1024 * _GIB,
    )
    stop_grace_ms: int = setting(
        500,
        "How long a stop goes on refusing sends, so that producers turn to another broker.",
        at_least=0,
        at_most=_DAY_MS,
    )

    # Replication.

    ha_listen_port: int = setting(
        0,
        "The port that replicas connect to; 0 stands for listenPort + 1.",
        at_least=0,
        at_most=65_535,
        rocketmq_key="haListenPort",
    )
    ha_master_address: str = setting(
        "",
        "The master's replication address, for a replica; empty asks the name servers.",
        rocketmq_key="haMasterAddress",
    )
    ha_transfer_batch_size: int = setting(
        32 * _KIB,
        "How much of the log is sent to a replica at a time.",
        at_least=1,
        at_most=16 * _MIB,
        rocketmq_default=32 * _KIB,
    )
    ha_send_heartbeat_interval: int = setting(
        5_000,
        "A master or replica that has said nothing for so long sends a heartbeat.",
        at_least=100,
        at_most=_DAY_MS,
        rocketmq_default=5_000,
    )
    ha_housekeeping_interval: int = setting(
        20_000,
        "A replication connection that was silent for so long is dropped.",
        at_least=200,
        at_most=_DAY_MS,
        rocketmq_default=20_000,
    )
    ha_slave_fallbehind_max: int = setting(
        256 * _MIB,
        "A replica that is further behind counts as not there.",
        at_least=1,
        at_most=_LONG_MAX,
        rocketmq_default=256 * _MIB,
    )
    slave_timeout: int = setting(
        3_000,
        "How long a send waits for a replica before it is answered FLUSH_SLAVE_TIMEOUT.",
        at_least=1,
        at_most=_INT_MAX,
        rocketmq_default=3_000,
    )
    offset_check_in_slave: bool = setting(
        False,
        "Let a replica correct offsets that it does not have, instead of leaving it to the master.",
        hot=True,
        rocketmq_default=False,
    )
    slave_sync_interval_ms: int = setting(
        10_000,
        "How often a replica copies topics, groups and offsets.",
        at_least=100,
        at_most=_DAY_MS,
    )
    registration_key: str = setting(
        "",
        "Secret that is proved to the name servers, as their registrationKey; empty proves none.",
        secret=True,
    )
    ha_cluster_key: str = setting(
        "",
        "Secret that master and replicas prove to each other; empty speaks RocketMQ's stream.",
        secret=True,
    )
    ha_recover_from_slave: bool = setting(
        True, "Let a master that starts take what its replicas have and it has lost."
    )
    ha_truncate_bytes_max: int = setting(
        64 * _MIB,
        "A replica whose log parts from the master's gives up at most so much of it by itself.",
        at_least=0,
        at_most=_GIB,
    )
    d_leger_group: str = setting(
        "", "Name of the Raft group; empty stands for brokerName.", rocketmq_key="dLegerGroup"
    )
    d_leger_peers: str = setting(
        "",
        "All members of the Raft group, as `n0-host:port;n1-host:port`.",
        rocketmq_key="dLegerPeers",
    )
    d_leger_self_id: str = setting(
        "",
        "Which member of dLegerPeers this broker is, such as `n0`.",
        rocketmq_key="dLegerSelfId",
    )
    preferred_leader_id: str = setting(
        "",
        "The member that is to lead while it is well; empty leaves it to the election.",
        rocketmq_key="preferredLeaderId",
    )
    raft_heartbeat_interval_ms: int = setting(
        200,
        "How often a leader shows the other members that it lives.",
        at_least=10,
        at_most=60_000,
    )
    raft_election_timeout_ms: int = setting(
        1_000,
        "After a silence of once to twice this long, members elect another leader.",
        at_least=50,
        at_most=600_000,
    )

    def check_together(self) -> None:
        ServerSettings.check_together(self)
        if self.is_raft:
            self._check_raft()
        elif self.is_replica and self.broker_id == 0:
            raise ConfigError(
                "brokerRole=SLAVE with brokerId=0, which is the master's; set brokerId=1 or above"
            )
        elif not self.is_replica and self.broker_id != 0:
            raise ConfigError(
                f"brokerId={self.broker_id} with brokerRole={self.broker_role}: a master has 0; "
                "set brokerId=0, or brokerRole=SLAVE for a replica"
            )
        if self.acl_enable:
            raise ConfigError("aclEnable=true: this is not available yet; set it to false")
        for key, name in (
            ("brokerName", self.broker_name),
            ("brokerClusterName", self.broker_cluster_name),
        ):
            if name or key == "brokerClusterName":
                try:
                    check_topic_name(name)  # Both are names of topics as well.
                except InvalidName as error:
                    raise ConfigError(f"{key}={name}: it {error.problem}") from None
        if self.max_message_size > self.frame_bytes_max - self.header_bytes_max:
            raise ConfigError(
                "maxMessageSize leaves no room for the header in a frame: lower it, "
                "or raise frameBytesMax"
            )
        self.store_config()  # It refuses what the store cannot use.

    def _check_raft(self) -> None:
        members = read_members(self.d_leger_peers)
        own = find_member(members, self.d_leger_self_id, "dLegerSelfId")
        if not self.broker_name:
            raise ConfigError(
                "enableDLegerCommitLog=true needs brokerName, the same at every member; the host "
                "name, which stands for it otherwise, is another one at each"
            )
        if self.preferred_leader_id:
            find_member(members, self.preferred_leader_id, "preferredLeaderId")
        if own.port in (self.listen_port, self.listen_port + FAST_PORT_STEP):
            raise ConfigError(
                f"dLegerPeers: port {own.port} of {own.name} is what clients connect to "
                f"(listenPort={self.listen_port}); give the group another one"
            )
        if self.raft_election_timeout_ms < 3 * self.raft_heartbeat_interval_ms:
            raise ConfigError(
                f"raftElectionTimeoutMs={self.raft_election_timeout_ms} is less than three times "
                f"raftHeartbeatIntervalMs={self.raft_heartbeat_interval_ms}: one lost heartbeat "
                "would cost a leader its place; raise the first, or lower the second"
            )
        if self.d_leger_group:
            try:
                check_topic_name(self.d_leger_group)
            except InvalidName as error:
                raise ConfigError(f"dLegerGroup={self.d_leger_group}: it {error.problem}") from None

    def raft_warnings(self) -> list[str]:
        """What is odd about the settings of a Raft group, and is taken all the same."""
        warnings = []
        count = len(read_members(self.d_leger_peers))
        if count == 1:
            warnings.append("dLegerPeers names one member: nothing is replicated; add two others")
        elif count % 2 == 0:
            warnings.append(
                f"dLegerPeers names {count} members: that survives no more failures than "
                f"{count - 1}; use an odd number"
            )
        for key, is_set in (
            ("brokerRole", self.broker_role != "ASYNC_MASTER"),
            ("brokerId", self.broker_id != 0),
            ("transientStorePoolEnable", self.transient_store_pool_enable),
            ("haMasterAddress", bool(self.ha_master_address)),
        ):
            if is_set:
                warnings.append(
                    f"{key} has no effect with enableDLegerCommitLog=true: the group decides; "
                    "take it out"
                )
        return warnings

    def store_config(self) -> StoreConfig:
        """What the store needs of it."""
        names = {item.name for item in dataclasses.fields(StoreConfig)}
        values = {
            item.name: getattr(self, item.name)
            for item in dataclasses.fields(self)
            if item.name in names
        }
        values["flush_disk_type"] = FlushDiskType(self.flush_disk_type)
        if self.is_raft:  # A member counts only what is on its disk.
            values["flush_disk_type"] = FlushDiskType.SYNC_FLUSH
        values["store_path_root_dir"] = os.path.expanduser(self.store_path_root_dir)
        if self.is_replica or self.is_raft:
            values["transient_store_pool_enable"] = False
        return StoreConfig(**values)

    @property
    def replication_port(self) -> int:
        """Where replicas connect; 0 lets the system choose."""
        if self.ha_listen_port or not self.listen_port:
            return self.ha_listen_port
        return self.listen_port + HA_PORT_STEP

    @property
    def is_replica(self) -> bool:
        """Whether it copies a master's log, for as long as it runs."""
        return self.broker_role == "SLAVE" and not self.is_raft

    @property
    def is_raft(self) -> bool:
        """Whether it is a member of a Raft group, and its role may change at any time."""
        return self.enable_d_leger_commit_log

    @property
    def raft_group(self) -> str:
        """The name that members of one group share."""
        return self.d_leger_group or self.broker_name

    @property
    def name_servers(self) -> tuple[str, ...]:
        """The addresses of the name servers."""
        words = self.namesrv_addr.replace(",", ";").split(";")
        return tuple(dict.fromkeys(word.strip() for word in words if word.strip()))


class LiveConfig:
    """The settings in force; those marked hot may change while the broker runs."""

    __slots__ = ("current",)

    def __init__(self, config: BrokerConfig) -> None:
        self.current = config
