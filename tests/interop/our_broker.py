"""Our broker as a process, and a Java program that uses brokers in every way."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from java_programs import JavaProgram, JavaSession
from peers import OurNameServer, Peers, Process, free_broker_port


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


class BrokerPeer(JavaProgram):
    """Our Java program over the official client; see `java/BrokerPeer.java` for its commands."""

    def __init__(self, peers: Peers, home: Path, *arguments: str) -> None:
        super().__init__(peers, "BrokerPeer", *arguments, home=home)


class ClientSession(JavaSession):
    """The same program for many commands, against the cluster of one name server."""

    def __init__(self, peers: Peers, home: Path, name_server: str) -> None:
        super().__init__(peers, "BrokerPeer", "session", home=home)
        self._name_server = name_server

    def run(self, command: str, *arguments: str | int, timeout_s: float = 120.0) -> list[str]:
        """Run one command and return its answer."""
        words = [command, self._name_server, *map(str, arguments)]
        answer = [line[2:] for line in self.ask(*words, timeout_s=timeout_s) if line[:2] == "> "]
        return [line for line in answer if line != "ready"]


@contextmanager
def our_cluster(home: Path, **settings: str) -> Iterator[tuple[OurNameServer, OurBroker]]:
    """A running name server and broker of ours; settings are the broker's, by RocketMQ's names."""
    with OurNameServer(home / "namesrv") as name_server:
        servers = [name_server.address]
        broker = OurBroker(
            home / "broker", name="broker-a", name_servers=servers, settings=settings
        )
        with broker:
            yield name_server, broker
