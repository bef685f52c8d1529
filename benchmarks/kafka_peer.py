"""A Kafka broker of one node, and Spark's connector to it, by their Maven coordinates.

The connector is not published for every version of Spark. 4.2.0 is the newest that Maven Central
serves, and it works in Spark 4.3; the module that hands out tokens is served up to 4.0.0, and is
only asked whether there are any.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "tests" / "interop")]

from peers import Process, built, free_ports, require, run_tool  # noqa: E402

POM = HERE / "kafka" / "pom.xml"
CONNECTOR = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.1",
    "org.apache.commons:commons-pool2:2.12.0",
)


def fetch_server() -> Path:
    """Return the folder of Kafka's jars."""
    require("mvn")

    def build(folder: Path) -> None:
        run_tool(
            "mvn", "--quiet", "--batch-mode", f"--file={POM}", "dependency:copy-dependencies",
            f"-DoutputDirectory={folder}", "-DincludeScope=runtime",
        )  # fmt: skip

    return built("kafka-server", [POM], build)


def fetch_connector() -> Sequence[Path]:
    """Return the jars that let Spark read and write Kafka."""
    require("mvn")

    def build(folder: Path) -> None:
        for coordinates in CONNECTOR:
            # One by one: what they depend on otherwise is in Spark already.
            run_tool(
                "mvn", "--quiet", "--batch-mode", "dependency:copy",
                f"-Dartifact={coordinates}", f"-DoutputDirectory={folder}",
            )  # fmt: skip

    return sorted(built("kafka-connector", [Path(__file__)], build).glob("*.jar"))


class KafkaBroker(Process):
    """Kafka without ZooKeeper: one process that is broker and controller."""

    def __init__(self, home: Path, *, partitions: int) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self._class_path = f"{fetch_server()}/*"
        port, controller = free_ports(2)
        self.address = f"127.0.0.1:{port}"
        self._port = port
        self._settings = home / "server.properties"
        values = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "listeners": f"PLAINTEXT://{self.address},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://{self.address}",
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "PLAINTEXT",
            "log.dirs": str(home / "data"),
            "offsets.topic.replication.factor": "1",
            "num.partitions": str(partitions),
        }
        self._settings.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
        super().__init__(
            "Kafka",
            ["java", "-Xmx1g", "-cp", self._class_path, "kafka.Kafka", str(self._settings)],
            home=home,
        )

    def start(self) -> None:
        """Format the storage, start, and wait until it answers."""
        run_tool(
            "java", "-cp", self._class_path, "kafka.tools.StorageTool", "format",
            "-t", "MkU3OEVBNTcwNTJENDM2Qg", "-c", str(self._settings),
        )  # fmt: skip
        super().start()

    def wait_ready(self) -> None:
        """Wait until the port takes connections."""
        import socket

        from peers import wait_until

        def answers() -> bool:
            try:
                socket.create_connection(("127.0.0.1", self._port), timeout=1).close()
            except OSError:
                return False
            return True

        wait_until(answers, timeout_s=60, what="Kafka's port")
