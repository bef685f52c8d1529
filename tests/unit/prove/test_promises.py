"""What is promised, configuration by configuration, and how networks are cut."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from pathlib import Path

import pytest

from skylark.prove.fabric import OUTSIDE
from skylark.prove.faults import SHAPES, cuts_of
from skylark.prove.promises import Facts, promises, rules
from skylark.prove.proxies import Proxies
from skylark.prove.shim import Shim, ShimState

NODES = ["a.0", "a.1", "a.2", "a.3", "a.4"]


def facts(kind: str, *, sync: bool, members: int = 3) -> Facts:
    return Facts(
        kind=kind,
        members=members,
        is_sync_flush=sync,
        flush_interval_ms=500,
        thorough_interval_ms=10_000,
        save_interval_ms=5_000,
        sync_interval_ms=10_000,
        lease_ms=60_000,
    )


@pytest.mark.parametrize(
    ("kind", "sync", "kept"),
    [
        ("alone", False, "yes no no no"),
        ("alone", True, "yes yes no yes"),
        ("async", False, "yes no no no"),
        ("async", True, "yes yes no yes"),
        ("sync", False, "yes yes yes no"),
        ("sync", True, "yes yes yes yes"),
        ("raft", False, "yes yes yes yes"),
        ("raft", True, "yes yes yes yes"),
    ],
)
def test_send_ok_means_what_the_table_of_guarantees_says(kind: str, sync: bool, kept: str) -> None:
    found = promises(facts(kind, sync=sync))
    assert " ".join("yes" if one.is_kept else "no" for one in found) == kept
    given = rules(facts(kind, sync=sync))
    losses = [given[f"loss_{name}"] for name in ("kill", "power", "disk", "all_power")]
    assert " ".join("yes" if loss == 0 else "no" for loss in losses) == kept


def test_a_raft_group_of_one_does_not_survive_its_disk() -> None:
    found = promises(facts("raft", sync=False, members=1))
    assert [one.is_kept for one in found] == [True, True, False, True]


@pytest.mark.parametrize("count", [1, 2, 3, 5])
@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_cuts_somebody_off_and_nobody_from_himself(shape: str, count: int) -> None:
    for seed in range(20):
        cuts = cuts_of(shape, NODES[:count], random.Random(seed))
        assert cuts or (count == 1 and shape == "ring")
        assert all(one != other for one, other in cuts)
        assert {name for pair in cuts for name in pair} <= {*NODES[:count], OUTSIDE}
        is_one_way = any((other, one) not in cuts for one, other in cuts)
        assert is_one_way == (shape in ("hears nothing", "says nothing"))


def test_a_proxy_holds_back_what_is_cut_and_lets_it_go_on_afterwards() -> None:
    async def main() -> None:
        fabric = Proxies()
        await fabric.open(["a.0"])
        port = fabric.base_port

        async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while data := await reader.read(100):
                writer.write(data)
            writer.close()

        server = await asyncio.start_server(echo, fabric.bound("a.0"), port)
        await fabric.expose("a.0", [port])
        reader, writer = await asyncio.open_connection(fabric.address("a.0"), port)
        writer.write(b"one")
        assert await reader.readexactly(3) == b"one"
        fabric.cut({("a.0", OUTSIDE)})
        writer.write(b"two")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.readexactly(3), 0.1)
        fabric.cut(())
        assert await reader.readexactly(3) == b"two"
        assert fabric.slow(["a.0"]) == "150 ms"
        writer.close()
        await writer.wait_closed()
        await fabric.close()
        server.close()

    asyncio.run(main())


def test_the_shim_moves_the_wall_clock_alone_and_lets_syncs_fail(tmp_path: Path) -> None:
    if Shim.missing() is not None:
        assert "compiler" in str(Shim.missing())
        return
    shim, state = Shim(tmp_path), ShimState(tmp_path / "state")
    shim.build()
    program = """
import os, sys, time
wall, mono = time.time(), time.monotonic()
print("ready", flush=True)
sys.stdin.readline()
print(round(time.time() - wall), time.monotonic() - mono < 60)
try:
    os.fdatasync(os.open(sys.argv[1], os.O_RDWR | os.O_CREAT))
    print("synced")
except OSError as error:
    print(error.strerror)
"""
    child = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "file")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=shim.environment(state),
    )
    assert child.stdin is not None
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    state.jump(-3_600_000)
    state.fail_syncs(True)
    said, _ = child.communicate("\n", timeout=60)
    moved, is_monotonic, sync = said.split(maxsplit=2)
    assert -3_600 <= int(moved) <= -3_500
    assert is_monotonic == "True"
    assert sync == "Input/output error\n"
