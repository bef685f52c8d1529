"""Small real stores for the tests of the tools."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

from skylark.store import MessageStore, OsFiles, StoreConfig
from skylark.testing.stores import HOST_V6, TINY, HandClock, make_message

TOPICS = ("TopicA", "TopicB", "TopicC")


def config_at(root: Path) -> StoreConfig:
    return replace(TINY, store_path_root_dir=str(root))


def messages(count: int, first: int = 0) -> list:
    return [
        make_message(
            TOPICS[number % 3],
            number % 4,
            b"body %d " % number * (number % 9),
            keys=f"key-{number} shared" if number % 2 else None,
            tag=f"Tag{number % 3}",
            UNIQ_KEY=f"0A0000{number:026X}",
            **({"born_host": HOST_V6} if number % 5 == 0 else {}),
        )
        for number in range(first, first + count)
    ]


def fill(store: MessageStore, clock: HandClock, count: int = 150, first: int = 0) -> None:
    for number, message in enumerate(messages(count, first)):
        clock.advance_ms(137)
        if number % 10 == 0:
            store.put_group([message, message])
        else:
            store.put([message])


def make_store(root: Path, count: int = 150, *, crash: bool = False) -> StoreConfig:
    """A store on the disk; with crash, as a killed process leaves it."""
    config, clock = config_at(root), HandClock()
    store = MessageStore.open(config, OsFiles(), clock)
    store.mark_open()
    fill(store, clock, count)
    if crash:
        store.log.prepare_next_file()
        store._release()
    else:
        store.close()
    return config


def write_table(root: Path, name: str, value: object) -> None:
    os.makedirs(root / "config", exist_ok=True)
    (root / "config" / name).write_text(json.dumps(value))


def snapshot(root: Path) -> dict[str, bytes]:
    """Every file with its content."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def patch(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def derived(root: Path) -> dict[str, bytes]:
    """Queues by name and index files by their order, as their names are times."""
    found = {
        name: content
        for name, content in snapshot(root).items()
        if name.startswith("consumequeue/") and content.strip(b"\0")
    }
    for number, path in enumerate(sorted((root / "index").glob("*"))):
        found[f"index/{number}"] = path.read_bytes()
    return found
