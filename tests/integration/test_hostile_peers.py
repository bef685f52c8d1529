"""S01 to S08: what is sent to the port, and what must happen. Real sockets, both loops."""

from __future__ import annotations

import asyncio
import contextlib
import random
import resource
import socket
import struct
import tracemalloc

import pytest
from net_harness import ECHO, Raw, Service, on_both_loops, run, until

from skylark.net import Listener
from skylark.protocol.command import Command
from skylark.protocol.frame import HEADER_BYTES_MAX, encode_frames

pytestmark = on_both_loops
MIB = 1024 * 1024


def framed(header: bytes, kind: int = 0, *, length: int | None = None) -> bytes:
    real = 4 + len(header)
    size = real if length is None else length
    return struct.pack(">i", size) + bytes([kind]) + len(header).to_bytes(3, "big") + header


def announced(length: int, kind: int, header_length: int) -> bytes:
    return struct.pack(">i", length) + bytes([kind]) + header_length.to_bytes(3, "big")


BINARY_FIXED = struct.pack(">hBhii", 105, 0, 409, 7, 0)
TLS_HELLO = bytes.fromhex("16030100a5010000a10303") + bytes(160)

CLOSED = {
    **{
        f"S01 length {length}": struct.pack(">i", length) + bytes(16)
        for length in (0, 1, 3, -1, 2**31 - 1, -(2**31), 16 * MIB - 3)
    },
    "S01 TLS hello on a plain port": TLS_HELLO,
    "S01 HTTP": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "S02 header longer than its frame": announced(100, 0, 97),
    "S02 header of 16 MiB": announced(16 * MIB - 4, 0, 2**24 - 1),
    "S02 header over 64 KiB": announced(MIB, 0, HEADER_BYTES_MAX + 1),
    **{f"S02 type {kind}": announced(100, kind, 10) for kind in (2, 3, 22, 127, 128, 255)},
    "S03 brackets": framed(b'{"code":105,"x":' + b"[" * 60_000),
    "S03 nested objects": framed(b'{"a":' * 12_000),
    "S03 long integer": framed(b'{"code":' + b"9" * 60_000 + b"}"),
    "S03 long integer elsewhere": framed(b'{"code":105,"x":' + b"1" * 60_000 + b"}"),
    "S03 NaN": framed(b'{"code":NaN}'),
    "S03 1e400": framed(b'{"code":1e400}'),
    "S03 duplicate keys": framed(b'{"code":105,"code":105}'),
    "S03 duplicate fields": framed(b'{"code":105,"extFields":{"a":"1","a":"2"}}'),
    "S03 lone surrogate": framed(b'{"code":105,"remark":"\\ud800"}'),
    "S03 code as text": framed(b'{"code":"105"}'),
    "S03 code as float": framed(b'{"code":105.0}'),
    "S03 code as list": framed(b'{"code":[105]}'),
    "S03 no code": framed(b'{"opaque":1}'),
    "S03 not JSON": framed(b"\xff" * 50),
    "S03 empty header": framed(b""),
    "S04 remark of -1": framed(BINARY_FIXED + struct.pack(">ii", -1, 0), 1),
    "S04 remark beyond": framed(BINARY_FIXED + struct.pack(">ii", 2**31 - 1, 0), 1),
    "S04 fields of -1": framed(BINARY_FIXED + struct.pack(">ii", 0, -1), 1),
    "S04 fields beyond": framed(BINARY_FIXED + struct.pack(">ii", 0, 2**31 - 1), 1),
    "S04 fields overlap": framed(BINARY_FIXED + struct.pack(">ii", 0, 8) + b"\0\1a\0\0\0\7b", 1),
    "S04 negative name": framed(BINARY_FIXED + struct.pack(">iih", 0, 2, -1), 1),
    "S04 cut": framed(BINARY_FIXED[:7], 1),
}


def our_lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    # In debug mode asyncio adds a line of its own when the machine is busy.
    return [r.getMessage() for r in caplog.records if r.name.startswith("skylark")]


async def assert_undisturbed(listener: Listener, bystander: Raw) -> None:
    assert (await bystander.ask(Command(ECHO, 1, body=b"still here"))).body == b"still here"
    await until(lambda: len(listener.links) == 1)
    assert listener.held_bytes == 0


@pytest.mark.parametrize("sent", CLOSED.values(), ids=CLOSED.keys())
@pytest.mark.parametrize("first", ["first", "after a good one"])
def test_what_is_no_frame_is_closed_with_one_line_and_nobody_else_notices(
    loop_name: str, sent: bytes, first: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        service = Service()
        async with service.listener() as listener:
            with await Raw.to(listener) as bystander, await Raw.to(listener) as hostile:
                await bystander.ask(Command(ECHO))
                if first != "first":
                    await hostile.ask(Command(ECHO))
                served = len(service.served)
                await hostile.send(sent)
                assert await hostile.wait_closed() == b""
                assert len(service.served) == served
                await assert_undisturbed(listener, bystander)

    run(loop_name, main())
    (line,) = our_lines(caplog)
    assert len(line) < 300


def test_good_requests_before_a_bad_frame_are_answered(loop_name: str) -> None:
    async def main() -> None:
        service = Service()
        async with service.listener() as listener:
            with await Raw.to(listener) as raw:
                await raw.send(encode_frames([Command(ECHO, n) for n in range(3)]) + bytes(8))
                # The answers were written before the link was cut; TCP may still drop them.
                await raw.wait_closed()
                assert service.served == [ECHO] * 3

    run(loop_name, main())


def test_announced_sizes_take_no_memory(loop_name: str) -> None:
    async def main() -> None:
        service = Service()
        async with service.listener() as listener:
            raws = [await Raw.to(listener) for _ in range(100)]
            await until(lambda: len(listener.links) == 100)
            tracemalloc.start()
            try:
                for raw in raws:
                    await raw.send(announced(16 * MIB - 4, 0, 100) + b"{")
                await until(lambda: listener.held_bytes == 900)
                held, _ = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            assert held < MIB, f"100 promises of 16 MiB took {held} bytes"
            for raw in raws:
                raw.sock.close()
            await until(lambda: not listener.links)

    run(loop_name, main())


def test_a_frame_takes_at_most_a_few_times_its_own_size(loop_name: str) -> None:
    async def main() -> None:
        service = Service()
        async with service.listener() as listener:
            with await Raw.to(listener) as raw:
                await raw.ask(Command(ECHO))
                data = encode_frames([Command(1, body=bytes(8 * MIB))])
                tracemalloc.start()
                try:
                    before, _ = tracemalloc.get_traced_memory()
                    await raw.send(data)
                    await raw.receive(2)
                    _, peak = tracemalloc.get_traced_memory()
                    assert peak - before < 2.5 * len(data)
                finally:
                    tracemalloc.stop()

    run(loop_name, main())


def test_random_bytes_close_and_disturb_nobody(loop_name: str) -> None:
    async def main() -> None:
        rng = random.Random(20)
        service = Service()
        async with service.listener(first_frame_timeout_ms=2000) as listener:
            with await Raw.to(listener) as bystander:
                await bystander.ask(Command(ECHO))
                good = encode_frames([Command(ECHO, 1, fields={"a": "b"}, body=b"xyz")])
                for number in range(150):
                    with await Raw.to(listener) as raw:
                        if number % 3 == 0:
                            junk = rng.randbytes(rng.randrange(1, 400))
                        else:
                            mutated = bytearray(good)
                            for _ in range(rng.randrange(1, 5)):
                                mutated[rng.randrange(len(mutated))] = rng.randrange(256)
                            junk = bytes(mutated)
                        await raw.send(junk)
                assert (await bystander.ask(Command(ECHO, 2))).opaque == 2
                await until(lambda: len(listener.links) == 1)
                assert listener.held_bytes == 0

    run(loop_name, main())


def test_each_of_65536_codes_is_answered(loop_name: str) -> None:
    async def main() -> None:
        service = Service()
        unknown = [code for code in range(65_536) if code not in service.handlers]
        async with service.listener() as listener:
            with await Raw.to(listener) as raw:
                sending = asyncio.create_task(
                    raw.send(encode_frames([Command(code, code) for code in unknown]))
                )
                answers = await raw.receive(len(unknown))
                await sending
                assert {answer.code for answer in answers} == {3}
                assert [answer.opaque for answer in answers] == unknown
                assert service.served == []

    run(loop_name, main())


def test_connections_beyond_the_cap_are_refused(
    loop_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        service = Service()
        async with service.listener(connections_max=50) as listener:
            accepted = [await Raw.to(listener) for _ in range(50)]
            await until(lambda: len(listener.links) == 50)
            for _ in range(20):
                with await Raw.to(listener) as late:
                    assert await late.wait_closed() == b""
            assert listener.refused_total == 20
            for raw in accepted:
                assert (await raw.ask(Command(ECHO))).code == 0
                raw.sock.close()
            await until(lambda: not listener.links)
            with await Raw.to(listener) as again:
                assert (await again.ask(Command(ECHO))).code == 0

    run(loop_name, main())
    assert len(our_lines(caplog)) == 20


def test_two_thousand_idle_connections_are_held_cheaply(loop_name: str) -> None:
    count = 2_000
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2 * count + 200:
        pytest.skip(f"the hard limit of open files is {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2 * count + 200), hard))

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_debug(False)  # Debugging keeps a stack for every timer.
        service = Service()
        with contextlib.ExitStack() as socks:
            async with service.listener() as listener:
                tracemalloc.start()
                try:
                    for _ in range(count):
                        sock = socks.enter_context(socket.socket())
                        sock.setblocking(False)
                        await loop.sock_connect(sock, listener.address)
                    await until(lambda: len(listener.links) == count)
                    taken, _ = tracemalloc.get_traced_memory()
                finally:
                    tracemalloc.stop()
                assert taken / count < 6_000, "bytes for each idle connection"
                with await Raw.to(listener) as one:
                    assert (await one.ask(Command(ECHO))).code == 0
                socks.close()
                await until(lambda: not listener.links)

    try:
        run(loop_name, main())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_reset_in_every_state_leaves_nothing_behind(loop_name: str) -> None:
    async def main() -> None:
        service = Service()
        frame = encode_frames([Command(ECHO, 1, body=bytes(2000))])
        async with service.listener() as listener:
            for size in (0, 1, 4, 8, 50, 200, len(frame), len(frame) + 5):
                for pause in (False, True):
                    raw = await Raw.to(listener)
                    await raw.send((frame + frame)[:size])
                    if pause:
                        await asyncio.sleep(0.01)
                    linger = struct.pack("ii", 1, 0)
                    raw.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                    raw.sock.close()
            await asyncio.sleep(0.05)
            await until(lambda: not listener.links)
            assert listener.held_bytes == 0

    run(loop_name, main())
