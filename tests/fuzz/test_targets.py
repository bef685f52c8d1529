"""The fuzz targets over their seeds and a few thousand seeded mutations; `make fuzz` goes on."""

from __future__ import annotations

import pathlib
import random
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))

import run
import targets

REGRESSIONS = pathlib.Path(__file__).parent / "regressions"
NAMES = pytest.mark.parametrize("name", list(targets.TARGETS))


def test_the_runner_knows_every_target() -> None:
    assert list(targets.TARGETS) == run.NAMES


@NAMES
def test_every_seed_is_sound(name: str) -> None:
    seeds = list(targets.TARGETS[name].seeds())
    assert len(seeds) >= 2
    for seed in seeds:
        targets.TARGETS[name].check(seed)


@NAMES
def test_mutated_seeds_are_read_or_refused(name: str) -> None:
    rng = random.Random(name)
    seeds = list(targets.TARGETS[name].seeds())
    for _ in range(1_500):
        data = bytearray(rng.choice(seeds)[:2048])
        for _ in range(rng.choice([1, 1, 2, 5])):
            mutate(data, rng)
        try:
            targets.TARGETS[name].check(bytes(data))
        except Exception as error:
            error.add_note(f"target {name}, input {bytes(data).hex()}")
            raise


def mutate(data: bytearray, rng: random.Random) -> None:
    at = rng.randrange(len(data) + 1)
    kind = rng.randrange(6)
    if kind == 0 and data:
        data[at % len(data)] = rng.randrange(256)
    elif kind == 1 and data:
        data[at % len(data)] ^= 1 << rng.randrange(8)
    elif kind == 2:
        del data[at : at + rng.randrange(1, 9)]
    elif kind == 3:
        data[at:at] = rng.randbytes(rng.randrange(1, 5))
    elif kind == 4:
        number = rng.choice([0, 1, -1, 127, 128, 255, 2**15, 2**31 - 1, -(2**31)])
        data[at : at + 4] = (number & 0xFFFFFFFF).to_bytes(4, "big")
    else:
        data[at:at] = data[at : at + rng.randrange(1, 40)]


def test_what_was_once_found_stays_fixed() -> None:
    for path in sorted(REGRESSIONS.glob("*.bin")):  # Named by target, then by what it was.
        targets.TARGETS[path.name.split("-", 1)[0]].check(path.read_bytes())
