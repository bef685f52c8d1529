"""Bytes to objects and back: no sockets, clock, asyncio or logging in here."""

from typing import TYPE_CHECKING

from ..lazy import front_door

if TYPE_CHECKING:
    from .acl import is_signature_valid as is_signature_valid
    from .acl import sign_fields as sign_fields
    from .batch import BatchEntry as BatchEntry
    from .batch import decode_batch as decode_batch
    from .batch import encode_batch as encode_batch
    from .batch import join_properties as join_properties
    from .compression import compress as compress
    from .compression import expand as expand
    from .compression import plain_body as plain_body
    from .compression import with_compression as with_compression
    from .hashes import java_string_hash as java_string_hash
    from .hashes import key_hash as key_hash
    from .hashes import tag_hash as tag_hash
    from .message_id import MessageIdReading as MessageIdReading
    from .message_id import UniqueId as UniqueId
    from .message_id import UniqueIdGenerator as UniqueIdGenerator
    from .message_id import parse_offset_id as parse_offset_id
    from .message_id import parse_unique_id as parse_unique_id
    from .message_id import read_message_id as read_message_id
    from .properties import encode_properties as encode_properties
    from .properties import format_properties as format_properties
    from .properties import parse_properties as parse_properties
    from .properties import require_sound_properties as require_sound_properties
    from .properties import split_keys as split_keys
    from .record import DispatchInfo as DispatchInfo
    from .record import decode_dispatch as decode_dispatch
    from .record import decode_dispatches as decode_dispatches
    from .record import decode_record as decode_record
    from .record import decode_records as decode_records
    from .record import encode_blank as encode_blank
    from .record import encode_record as encode_record
    from .record import encode_record_into as encode_record_into
    from .record import pack_host as pack_host
    from .record import record_size as record_size
    from .record import unpack_host as unpack_host
else:
    __getattr__, __dir__ = front_door(
        globals(),
        {
            "acl": (
                "is_signature_valid",
                "sign_fields",
            ),
            "batch": (
                "BatchEntry",
                "decode_batch",
                "encode_batch",
                "join_properties",
            ),
            "compression": (
                "compress",
                "expand",
                "plain_body",
                "with_compression",
            ),
            "hashes": (
                "java_string_hash",
                "key_hash",
                "tag_hash",
            ),
            "message_id": (
                "MessageIdReading",
                "UniqueId",
                "UniqueIdGenerator",
                "parse_offset_id",
                "parse_unique_id",
                "read_message_id",
            ),
            "properties": (
                "encode_properties",
                "format_properties",
                "parse_properties",
                "require_sound_properties",
                "split_keys",
            ),
            "record": (
                "DispatchInfo",
                "decode_dispatch",
                "decode_dispatches",
                "decode_record",
                "decode_records",
                "encode_blank",
                "encode_record",
                "encode_record_into",
                "pack_host",
                "record_size",
                "unpack_host",
            ),
        },
    )
