"""Apache's own filter evaluator as a program that answers questions."""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from peers import HERE, PeerError, Peers


def ask(peers: Peers, requests: Sequence[str]) -> list[str]:
    """One answer for each request; see `java/FilterPeer.java` for both."""
    class_path = f"{_compiled(peers)}:{peers.class_path}"
    done = subprocess.run(
        ["java", "-Xmx256m", "-XX:+UseSerialGC", "-cp", class_path, "FilterPeer"],
        input="".join(f"{request}\n" for request in requests),
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "JAVA_TOOL_OPTIONS": ""},
    )
    return [line for line in done.stdout.splitlines() if line]


def _compiled(peers: Peers) -> Path:
    source = HERE / "java" / "FilterPeer.java"
    digest = hashlib.sha256(source.read_bytes()).hexdigest()[:16]
    folder = peers.folder.parent / f"filter-peer-{digest}"
    with (peers.folder.parent / "filter-peer.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "FilterPeer.class").exists():
            folder.mkdir(exist_ok=True)
            done = subprocess.run(
                ["javac", "-nowarn", "-encoding", "UTF-8", "-cp", peers.class_path, "-d",
                 str(folder), str(source)],
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            if done.returncode != 0:
                raise PeerError(f"javac failed:\n{done.stderr[-3000:]}")
    return folder
