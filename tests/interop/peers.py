"""Apache RocketMQ's own programs, and ours, as processes that a test can start and kill.

Nothing of Apache's is kept in git. `Peers.fetch()` asks Maven for the coordinates in
`java/pom.xml`, compiles the servers out of the source release and our small client program beside
them, and keeps the result in a cache folder: `tests/interop/.peers`, or where SKYLARK_PEERS says.
`Peers.fetch_clients()` does so for the client and tools of 5.x; Go and Node have their own ways.

Every process runs in a session of its own, with its home in a temporary folder and on ports that
were free a moment ago; readiness is probed, never slept for; leaving the `with` block kills the
whole group.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Self, TypeVar

from wire import NoAnswer, Probe

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent.parent
VERSION = "4.9.8"
CLIENTS_VERSION = "5.3.3"  # As java/clients-5.xml says.

# Central has these three of 4.9.8 only as sources.
_COMPILED_MODULES = ("namesrv", "broker", "filter")

# Java 17 closes what RocketMQ's store and fastjson look into.
_JAVA_OPENINGS = (
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
)
# Tests want quick starts in little memory; the benchmark brings its own options.
JAVA_SMALL = (
    "-Xms32m",
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Xshare:auto",
    "-XX:-UsePerfData",
)

_LOGBACK = """<configuration>
  <appender name="FILE" class="ch.qos.logback.core.FileAppender">
    <file>${user.home}/apache.log</file>
    <encoder><pattern>%d{HH:mm:ss.SSS} %p %c - %m%n</pattern></encoder>
  </appender>
  <root><level value="INFO"/><appender-ref ref="FILE"/></root>
</configuration>
"""

_T = TypeVar("_T")


class PeerError(Exception):
    """A peer could not be fetched, started or asked; the text says what to do."""


def wait_until(
    ask: Callable[[], _T | None], *, timeout_s: float, what: str, every_s: float = 0.05
) -> _T:
    """Return the first true answer; raise PeerError naming `what` when none comes in time."""
    deadline = time.monotonic() + timeout_s
    while True:
        answer = ask()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise PeerError(f"not within {timeout_s:g} s: {what}")
        time.sleep(every_s)


# Below the kernel's range for outgoing connections: a port out of that range may be taken by any
# client between our look and the server's start.
_PORTS = range(12_000, 32_000)
_SHARES = 10  # Workers that run beside each other have a share each.
_given: set[int] = set()


def free_ports(count: int = 1) -> list[int]:
    """Return ports that nothing listens on, each given out once in this process."""
    return [_free_port(steps=(0,)) for _ in range(count)]


def free_broker_port() -> int:
    """Return a port p such that p - 2 (fast), p - 1 and p + 1 (replication) are free as well."""
    return _free_port(steps=(-2, -1, 0, 1))


def _free_port(steps: tuple[int, ...]) -> int:
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    size = len(_PORTS) // _SHARES
    share = _PORTS[worker % _SHARES * size :][2 : size - 1]
    chance = random.SystemRandom()  # Two runs at once must not choose alike.
    for _ in range(1000):
        port = chance.choice(share)
        wanted = [port + step for step in steps]
        if _given.isdisjoint(wanted) and all(_is_free(one) for one in wanted):
            _given.update(wanted)
            return port
    raise PeerError(f"no port between {_PORTS.start} and {_PORTS.stop} is free")


def _is_free(port: int) -> bool:
    with socket.socket() as one:
        try:
            one.bind(("", port))
        except OSError:
            return False
        return True


class Peers:
    """The fetched and compiled programs."""

    def __init__(self, folder: Path, version: str = VERSION) -> None:
        self.folder = folder
        self.version = version

    @property
    def class_path(self) -> str:
        """What to give to `java -cp`."""
        return f"{self.folder / 'classes'}:{self.folder / 'jars'}/*"

    @classmethod
    def fetch(cls) -> Peers:
        """Return the programs, fetching and compiling what the cache does not have."""
        pom, peer = (HERE / "java" / name for name in ("pom.xml", "Peer.java"))
        return cls(built(f"rocketmq-{VERSION}", (pom, peer), cls._build))

    @classmethod
    def fetch_clients(cls) -> Peers:
        """Return the client and the tools of 5.x; there are no servers among them."""
        pom, peer = (HERE / "java" / name for name in ("clients-5.xml", "Peer.java"))

        def build(folder: Path) -> None:
            for tool in ("java", "javac", "mvn"):
                require(tool)
            jars, classes = folder / "jars", folder / "classes"
            classes.mkdir(parents=True)
            run_tool(
                "mvn", "--quiet", "--batch-mode", f"--file={pom}", "dependency:copy-dependencies",
                f"-DoutputDirectory={jars}", "-DincludeScope=runtime",
            )  # fmt: skip
            run_tool(
                "javac", "-nowarn", "-encoding", "UTF-8", "-proc:none", "-cp", f"{jars}/*",
                "-d", str(classes), str(peer),
            )  # fmt: skip

        return cls(built(f"rocketmq-{CLIENTS_VERSION}", (pom, peer), build), CLIENTS_VERSION)

    @staticmethod
    def _build(folder: Path) -> None:
        for tool in ("java", "javac", "mvn"):
            require(tool)
        jars, classes, sources = (folder / name for name in ("jars", "classes", "sources"))
        classes.mkdir(parents=True)
        skipped = ",".join(f"rocketmq-{module}" for module in _COMPILED_MODULES)
        run_tool(
            "mvn",
            "--quiet",
            "--batch-mode",
            f"--file={HERE / 'java' / 'pom.xml'}",
            "dependency:copy-dependencies",
            f"-DoutputDirectory={jars}",
            "-DincludeScope=runtime",
            f"-DexcludeArtifactIds={skipped}",
        )
        (archive,) = jars.glob("rocketmq-all-*-source-release.zip")
        wanted = tuple(f"{module}/src/main/java/" for module in _COMPILED_MODULES)
        with zipfile.ZipFile(archive) as release:
            for name in release.namelist():
                if name.partition("/")[2].startswith(wanted) and name.endswith(".java"):
                    release.extract(name, sources)
        listing = folder / "sources.txt"
        paths = [*sources.rglob("*.java"), HERE / "java" / "Peer.java"]
        listing.write_text("".join(f'"{path}"\n' for path in sorted(paths)))
        run_tool(
            "javac",
            "-nowarn",
            "-encoding",
            "UTF-8",
            "-proc:none",
            "-cp",
            f"{jars}/*",
            "-d",
            str(classes),
            f"@{listing}",
        )
        shutil.rmtree(sources)
        archive.unlink()


def _cache() -> Path:
    return Path(os.environ.get("SKYLARK_PEERS", HERE / ".peers"))


@contextmanager
def locked(root: Path, name: str) -> Iterator[None]:
    """Hold a lock of this name: two runs at once fetch and compile once."""
    root.mkdir(parents=True, exist_ok=True)
    with (root / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def built(name: str, sources: Sequence[Path], build: Callable[[Path], None]) -> Path:
    """Return a folder of the cache, built anew when its sources have changed."""
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()
    folder = _cache() / name
    stamp = folder / "complete"
    with locked(_cache(), name):
        if not stamp.exists() or stamp.read_text() != digest:
            shutil.rmtree(folder, ignore_errors=True)
            build(folder)
            stamp.write_text(digest)
    return folder


def fetch_examples(peers: Peers) -> Path:
    """Return the classes of Apache's example programs, compiled from the source release."""

    def build(folder: Path) -> None:
        classes, sources = folder / "classes", folder / "sources"
        classes.mkdir(parents=True)
        run_tool(
            "mvn", "--quiet", "--batch-mode", f"--file={HERE / 'java' / 'pom.xml'}",
            "dependency:copy-dependencies", f"-DoutputDirectory={sources}",
            "-DincludeClassifiers=source-release",
        )  # fmt: skip
        (archive,) = sources.glob("rocketmq-all-*-source-release.zip")
        with zipfile.ZipFile(archive) as release:
            for name in release.namelist():
                inside = name.partition("/")[2].lower()
                if inside.startswith("example/src/main/java/") and not any(
                    library in inside for library in ("openmessaging", "opentracing")
                ):
                    release.extract(name, sources)
        files = map(str, sorted(sources.rglob("*.java")))
        run_tool(
            "javac", "-nowarn", "-encoding", "UTF-8", "-proc:none", "-cp", peers.class_path,
            "-d", str(classes), *files,
        )  # fmt: skip
        shutil.rmtree(sources)

    return built(f"examples-{VERSION}", [HERE / "java" / "pom.xml"], build) / "classes"


def fetch_go_client() -> Path:
    """Return our program over the official Go client, compiled."""
    require("go")
    program = _cache() / "go-client"
    with locked(_cache(), "go"):
        # Go keeps what it has compiled, so that this is quick from the second time on.
        run_tool("go", "build", "-mod=readonly", "-o", str(program), ".", folder=HERE / "go")
    return program


def fetch_node_client() -> Path:
    """Return our program over the Node client, beside the modules that it needs."""
    require("npm")
    names = ("package.json", "package-lock.json", "main.js")
    sources = [HERE / "node" / name for name in names]

    def build(folder: Path) -> None:
        folder.mkdir(parents=True)
        for source in sources:
            shutil.copy(source, folder)
        run_tool("npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts", folder=folder)

    return built("node-client", sources, build) / "main.js"


_PACKAGES = {"go": ("golang-go",), "npm": ("nodejs", "npm")}


def require(tool: str) -> None:
    """Check that a program is installed, and install it where that is possible."""
    if shutil.which(tool):
        return
    packages = _PACKAGES.get(tool, ("default-jdk-headless", "maven"))
    if os.geteuid() == 0 and shutil.which("apt-get"):
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        subprocess.run(["apt-get", "update", "-qq"], check=True, env=environment)
        subprocess.run(["apt-get", "install", "-y", "-qq", *packages], check=True, env=environment)
    if not shutil.which(tool):
        raise PeerError(
            f"{tool} is missing: install it (Debian: apt-get install {' '.join(packages)}), then "
            "run make interop again; Java must be 17 or newer, Go 1.19, Node 18"
        )


def run_tool(*command: str, folder: Path | None = None) -> None:
    """Run a program to its end; what it printed is shown when it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    if done.returncode != 0:
        output = (done.stdout + done.stderr).strip()
        raise PeerError(f"{command[0]} failed with {done.returncode}:\n{output[-3000:]}")


def _die_with_parent() -> None:
    # A test run that is itself killed must not leave servers behind. 1 is PR_SET_PDEATHSIG.
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


class Process:
    """A program in its own session, its output kept line by line."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        home: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.command = list(command)
        self.home = home
        self.environment = {**os.environ, **(environment or {})}
        self.lines: list[str] = []
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        """The process id."""
        assert self._process is not None, f"{self.name} was not started"
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process is there."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start and wait until it is ready."""
        assert not self.running, f"{self.name} runs already"
        self.home.mkdir(parents=True, exist_ok=True)
        self.lines = []
        self._process = subprocess.Popen(
            self.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            cwd=self.home,
            env=self.environment,
            start_new_session=True,
            preexec_fn=_die_with_parent,
        )
        assert self._process.stdout is not None
        self._reader = threading.Thread(
            target=self._read, args=(self._process.stdout, self.lines), daemon=True
        )
        self._reader.start()
        try:
            self.wait_ready()
        except BaseException:
            self.kill()
            raise

    @staticmethod
    def _read(stream: IO[str], lines: list[str]) -> None:
        for line in stream:
            lines.append(line.rstrip("\n"))

    def wait_ready(self) -> None:
        """Wait until it does its work; a plain program is ready at once."""

    def wait_for_line(self, start: str, timeout_s: float = 30.0) -> str:
        """Return the first line that starts so."""

        def find() -> str | None:
            for line in list(self.lines):
                if line.startswith(start):
                    return line
            if not self.running:
                self._join()
                for line in self.lines:
                    if line.startswith(start):
                        return line
                raise PeerError(f"{self.name} ended without {start!r}")
            return None

        try:
            return wait_until(find, timeout_s=timeout_s, what=f"{start!r} from {self.name}")
        except PeerError as error:
            raise PeerError(f"{error}:\n{self.tail()}") from None

    def wait_ended(self, timeout_s: float = 30.0) -> int:
        """Wait for the end; return the exit code."""
        assert self._process is not None
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise PeerError(
                f"{self.name} still runs after {timeout_s:g} s:\n{self.tail()}"
            ) from None
        self._join()
        return code

    def end_input(self) -> None:
        """Close its standard input, which tells our Java program to finish."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.close()

    def stop(self, timeout_s: float = 30.0) -> int:
        """Ask it to end (SIGTERM); return the exit code."""
        assert self._process is not None
        self._process.terminate()
        code = self.wait_ended(timeout_s)
        self.kill()
        return code

    def kill(self) -> None:
        """End the whole process group at once (SIGKILL)."""
        if self._process is None:
            return
        with suppress(ProcessLookupError):  # Everything in it may have ended already.
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._join()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(BrokenPipeError):  # Unread input of a process that is gone.
                    stream.close()
        self._process = None

    def _join(self) -> None:
        if self._reader is not None:
            self._reader.join(5)

    def tail(self, count: int = 30) -> str:
        """Return the last lines of its output and of its log file."""
        lines = self.lines[-count:]
        log = self.home / "apache.log"
        if log.exists():
            lines += ["-- apache.log", *log.read_text(errors="replace").splitlines()[-count:]]
        return "\n".join(lines)


class JavaProcess(Process):
    """A Java main class of Apache's, or ours, with its files under one temporary home."""

    def __init__(
        self,
        peers: Peers,
        name: str,
        main: str,
        arguments: Iterable[str] = (),
        *,
        home: Path,
        java_options: Sequence[str] = JAVA_SMALL,
    ) -> None:
        configuration = home / "conf"
        configuration.mkdir(parents=True, exist_ok=True)
        for part in ("namesrv", "broker", "tools"):
            # Several tools may share a home at once; none of them may read half a file.
            file = configuration / f"logback_{part}.xml"
            draft = file.with_suffix(f".{threading.get_ident()}")
            draft.write_text(_LOGBACK)
            draft.replace(file)
        command = [
            "java",
            *java_options,
            *_JAVA_OPENINGS,
            f"-Duser.home={home}",
            "-cp",
            peers.class_path,
            main,
            *arguments,
        ]
        environment = {"ROCKETMQ_HOME": str(home), "JAVA_TOOL_OPTIONS": "", "NAMESRV_ADDR": ""}
        super().__init__(name, command, home=home, environment=environment)
        # An empty variable is not an unset one: the JVM greets the former on standard error.
        for variable in environment:
            if not self.environment[variable]:
                del self.environment[variable]


class NameServer(Process):
    """Either name server: both listen on a port and answer route questions."""

    port: int

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"127.0.0.1:{self.port}"

    def wait_ready(self) -> None:
        """Wait until it answers a route question."""

        def answers() -> bool:
            if not self.running:
                raise PeerError(f"{self.name} ended at start")
            try:
                with Probe(self.address, timeout_s=2) as probe:
                    return probe.call(105, {"topic": "is-anyone-there"}).code == 17
            except (OSError, NoAnswer):
                return False

        try:
            wait_until(answers, timeout_s=60, what=f"an answer from {self.name}")
        except PeerError as error:
            raise PeerError(f"{error}:\n{self.tail()}") from None


class ApacheNameServer(JavaProcess, NameServer):
    """Apache's name server."""

    def __init__(
        self,
        peers: Peers,
        home: Path,
        *,
        port: int | None = None,
        settings: Mapping[str, str] | None = None,
        java_options: Sequence[str] = JAVA_SMALL,
    ) -> None:
        self.port = port if port is not None else free_ports()[0]
        home.mkdir(parents=True, exist_ok=True)
        file = home / "namesrv.properties"
        file.write_text(_properties({"listenPort": str(self.port), **(settings or {})}))
        super().__init__(
            peers,
            f"Apache's name server {self.port}",
            "org.apache.rocketmq.namesrv.NamesrvStartup",
            ["-c", str(file)],
            home=home,
            java_options=java_options,
        )


class OurNameServer(NameServer):
    """Our name server, by its command."""

    def __init__(
        self,
        home: Path,
        *,
        port: int | None = None,
        settings: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.port = port if port is not None else free_ports()[0]
        home.mkdir(parents=True, exist_ok=True)
        file = home / "namesrv.properties"
        file.write_text(_properties(settings or {}))
        command = Path(sys.executable).with_name("mqnamesrv")
        if not command.exists():
            raise PeerError(f"{command} is missing: run make install")
        super().__init__(
            f"our name server {self.port}",
            [str(command), "-p", str(self.port), "-c", str(file)],
            home=home,
            # Both kinds of server keep their files under a home of their own.
            environment={"HOME": str(home), "ROCKETMQ_HOME": str(home), **(environment or {})},
        )


class ApacheBroker(JavaProcess):
    """Apache's broker, with a small store."""

    def __init__(
        self,
        peers: Peers,
        home: Path,
        *,
        name: str,
        name_servers: Sequence[str],
        cluster: str = "interop",
        broker_id: int = 0,
        settings: Mapping[str, str] | None = None,
        java_options: Sequence[str] = (*JAVA_SMALL, "-XX:MaxDirectMemorySize=128m"),
    ) -> None:
        self.broker_name = name
        self.port = free_broker_port()
        self.name_servers = list(name_servers)
        home.mkdir(parents=True, exist_ok=True)
        file = home / "broker.conf"
        file.write_text(
            _properties(
                {
                    "brokerClusterName": cluster,
                    "brokerName": name,
                    "brokerId": str(broker_id),
                    "brokerRole": "ASYNC_MASTER" if broker_id == 0 else "SLAVE",
                    "brokerIP1": "127.0.0.1",
                    "brokerIP2": "127.0.0.1",
                    "listenPort": str(self.port),
                    "haListenPort": str(self.port + 1),
                    "namesrvAddr": ";".join(name_servers),
                    "registerNameServerPeriod": "10000",
                    "storePathRootDir": str(home / "store"),
                    "storePathCommitLog": str(home / "store" / "commitlog"),
                    "mappedFileSizeCommitLog": str(16 << 20),
                    "mappedFileSizeConsumeQueue": str(20 * 3000),
                    "maxIndexNum": "20000",
                    "maxHashSlotNum": "5000",
                    "diskMaxUsedSpaceRatio": "99",
                    "osPageCacheBusyTimeOutMills": "10000",
                    "waitTimeMillsInSendQueue": "10000",
                    **(settings or {}),
                }
            )
        )
        super().__init__(
            peers,
            f"Apache's broker {name}",
            "org.apache.rocketmq.broker.BrokerStartup",
            ["-c", str(file)],
            home=home,
            java_options=java_options,
        )

    @property
    def address(self) -> str:
        """Where it listens, and says it does."""
        return f"127.0.0.1:{self.port}"

    def wait_ready(self) -> None:
        """Wait until it answers; `wait_registered` waits for the name servers to know it.

        It listens some seconds before it can tell its own state: the figures for that are taken
        once a second, and until then it answers with an error.
        """
        self.wait_for_line("The broker[", timeout_s=60)

        def tells() -> bool:
            with Probe(self.address) as probe:
                return probe.call(28).code == 0

        wait_until(tells, timeout_s=30, what=f"the state of {self.name}", every_s=0.2)

    def wait_registered(self, name_servers: Iterable[NameServer], timeout_s: float = 30.0) -> None:
        """Wait until every one of these name servers lists it."""
        for server in name_servers:
            wait_until(
                lambda server=server: self.is_known_to(server),  # type: ignore[misc]
                timeout_s=timeout_s,
                what=f"{self.name} at {server.name}",
                every_s=0.1,
            )

    def is_known_to(self, server: NameServer) -> bool:
        """Whether a name server lists this broker's address."""
        with Probe(server.address) as probe:
            return f'"{self.address}"'.encode() in probe.call(106).body


class JavaClient(JavaProcess):
    """Our Java program over the official client; see `java/Peer.java` for its commands."""

    def __init__(
        self, peers: Peers, home: Path, *arguments: str, java_options: Sequence[str] = ()
    ) -> None:
        super().__init__(
            peers,
            f"Java client {arguments[0]}",
            "Peer",
            arguments,
            home=home,
            java_options=(*JAVA_SMALL, *java_options),
        )


class GoClient(Process):
    """Our Go program over the official client; see `go/main.go` for its command."""

    def __init__(self, home: Path, *arguments: str) -> None:
        command = [str(fetch_go_client()), *arguments]
        super().__init__(f"Go client {arguments[0]}", command, home=home)


class NodeClient(Process):
    """Our Node program over `ali-ons`; see `node/main.js` for its commands."""

    def __init__(self, home: Path, *arguments: str) -> None:
        command = ["node", str(fetch_node_client()), *arguments]
        super().__init__(f"Node client {arguments[0]}", command, home=home)


class ApacheExample(JavaProcess):
    """One of the programs that Apache ships as examples, by its class under `example`."""

    def __init__(
        self, peers: Peers, home: Path, name: str, name_server: str, *arguments: str
    ) -> None:
        main = f"org.apache.rocketmq.example.{name}"
        super().__init__(peers, f"Apache's {name}", main, arguments, home=home)
        place = self.command.index("-cp") + 1
        self.command[place] = f"{fetch_examples(peers)}:{self.command[place]}"
        self.environment["NAMESRV_ADDR"] = name_server


class MqAdmin:
    """Apache's mqadmin."""

    def __init__(self, peers: Peers, home: Path) -> None:
        self._peers = peers
        self._home = home

    def run(
        self,
        name_server: str,
        *arguments: str,
        timeout_s: float = 60.0,
        java_options: Sequence[str] = (),
    ) -> str:
        """Run one command to its end and return what it printed."""
        process = JavaProcess(
            self._peers,
            f"mqadmin {arguments[0]}",
            "org.apache.rocketmq.tools.command.MQAdminStartup",
            [arguments[0], "-n", name_server, *arguments[1:]],
            home=self._home,
            java_options=(*JAVA_SMALL, *java_options),
        )
        with process:
            process.wait_ended(timeout_s)
            return "\n".join(process.lines)


def _properties(settings: Mapping[str, str]) -> str:
    return "".join(f"{key}={value}\n" for key, value in settings.items())
