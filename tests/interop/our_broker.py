"""Our broker as a process, and a Java program that uses brokers in more ways than Peer.java."""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from peers import HERE, JavaProcess, PeerError, Peers, Process, free_broker_port


class OurBroker(Process):
    """Our broker, with a small store."""

    def __init__(
        self,
        home: Path,
        *,
        name: str,
        name_servers: Sequence[str],
        cluster: str = "interop",
        port: int | None = None,
        settings: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.broker_name = name
        self.port = free_broker_port() if port is None else port
        home.mkdir(parents=True, exist_ok=True)
        file = home / "broker.conf"
        values = {
            "brokerClusterName": cluster,
            "brokerName": name,
            "brokerId": "0",
            "brokerIP1": "127.0.0.1",
            "listenPort": str(self.port),
            "namesrvAddr": ";".join(name_servers),
            "storePathRootDir": str(home / "store"),
            "mappedFileSizeCommitLog": str(16 << 20),
            "mappedFileSizeConsumeQueue": str(20 * 3000),
            "maxIndexNum": "200000",
            "maxHashSlotNum": "50000",
            "diskSpaceAmpleBytes": str(1 << 30),
            **(settings or {}),
        }
        file.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
        super().__init__(
            f"our broker {name}",
            [sys.executable, "-m", "skylark.cli.mqbroker", "-c", str(file), "--log-dir", "-"],
            home=home,
            environment={"HOME": str(home), "ROCKETMQ_HOME": str(home), **(environment or {})},
        )

    @property
    def address(self) -> str:
        """Where it listens, and says it does."""
        return f"127.0.0.1:{self.port}"

    def wait_ready(self) -> None:
        """Wait until it serves and is registered."""
        self.wait_for_line("The broker[", timeout_s=30)


class BrokerPeer(JavaProcess):
    """Our Java program over the official client; see `java/BrokerPeer.java` for its commands."""

    def __init__(self, peers: Peers, home: Path, *arguments: str) -> None:
        classes = _compiled(peers)
        super().__init__(peers, f"Java client {arguments[0]}", "BrokerPeer", arguments, home=home)
        place = self.command.index("-cp") + 1
        self.command[place] = f"{classes}:{self.command[place]}"


def _compiled(peers: Peers) -> Path:
    """Compile the program where it has changed; the classes are kept beside Apache's."""
    source = HERE / "java" / "BrokerPeer.java"
    digest = hashlib.sha256(source.read_bytes()).hexdigest()[:16]
    folder = peers.folder.parent / f"broker-peer-{digest}"
    with (peers.folder.parent / "broker-peer.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "BrokerPeer.class").exists():
            os.makedirs(folder, exist_ok=True)
            done = subprocess.run(
                ["javac", "-nowarn", "-encoding", "UTF-8", "-cp", peers.class_path, "-d",
                 str(folder), str(source)],
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            if done.returncode != 0:
                raise PeerError(f"javac failed:\n{done.stderr[-3000:]}")
    return folder
