"""Every frame that was captured from Apache RocketMQ reads alike on both paths, and writes back."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator

import pytest

from skylark.protocol import frame
from skylark.protocol.codes import Language, RequestCode, ResponseCode
from skylark.protocol.command import Command

CAPTURED = pathlib.Path(__file__).parents[2] / "golden" / "captured"
FILES = sorted(CAPTURED.glob("*.json"))
LIMITS = (frame.FRAME_BYTES_MAX, frame.HEADER_BYTES_MAX)


def frames_of(path: pathlib.Path) -> Iterator[tuple[str, bytes, dict[str, object]]]:
    for exchange in json.loads(path.read_text())["exchanges"]:
        for side in ("request", "answer"):
            if side in exchange:
                yield side, bytes.fromhex(exchange[side]), exchange


def decode(data: bytes) -> Command:
    commands, used, error = frame.pure_decode_frames(data, *LIMITS)
    assert error is None
    assert used == len(data)
    (command,) = commands
    return command


def test_there_are_captured_frames() -> None:
    assert len(FILES) >= 10
    assert sum(1 for path in FILES for _ in frames_of(path)) >= 100


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_captured_frame_means_what_was_seen(path: pathlib.Path) -> None:
    for side, data, exchange in frames_of(path):
        command = decode(data)
        assert command.is_response == (side == "answer")
        assert command.serialization in (0, 1)
        if side == "request":
            assert command.code == exchange["code"]
            assert command.code in set(RequestCode)
            assert command.is_oneway == exchange["oneway"]
            assert ("JSON", "ROCKETMQ")[command.serialization] == exchange["serialization"]
        else:
            assert command.code == exchange["answer_code"]
            assert command.code in set(ResponseCode)
            assert command.opaque == decode(bytes.fromhex(str(exchange["request"]))).opaque


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_both_paths_read_a_captured_frame_alike(path: pathlib.Path) -> None:
    compiled = pytest.importorskip("skylark.protocol._frame")
    for _, data, _ in frames_of(path):
        assert compiled.decode_frames(data, *LIMITS) == ([decode(data)], len(data), None)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_whole_capture_reads_as_one_stream(path: pathlib.Path) -> None:
    every = [data for _, data, _ in frames_of(path)]
    decoder = frame.FrameDecoder()
    assert decoder.feed(b"".join(every)) == [decode(data) for data in every]


@pytest.mark.parametrize("encode", ["pure", "compiled"])
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_captured_frame_written_again_means_the_same(path: pathlib.Path, encode: str) -> None:
    encode_frames = frame.pure_encode_frames
    if encode == "compiled":
        encode_frames = pytest.importorskip("skylark.protocol._frame").encode_frames
    for _, data, _ in frames_of(path):
        command = decode(data)
        again = encode_frames([command])
        assert decode(again) == command
        if command.serialization == 0:
            assert without_fields(header_of(again)) == without_fields(header_of(data))
        elif command.language == Language.JAVA:
            assert len(again) <= len(data)  # Java may write entries of no value; we drop them.


def header_of(data: bytes) -> dict[str, object]:
    size = int.from_bytes(data[5:8], "big")
    header: dict[str, object] = json.loads(data[8 : 8 + size])
    return header


def without_fields(header: dict[str, object]) -> dict[str, object]:
    # An empty extFields and an absent one mean the same; decode() has compared the others.
    return {name: value for name, value in header.items() if name != "extFields"}
