"""Our own small Java programs: compiled over the official client of one release, and kept.

The same source serves 4.9.8 and 5.x: a few names moved between the two, and they are moved here.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from peers import HERE, JAVA_SMALL, JavaProcess, PeerError, Peers, locked, run_tool, wait_until

_END = "=== end of command ==="

# A new group's retry topic is found by the second rebalance, 20 s after the first.
_PATIENCE = (
    "-Drocketmq.client.rebalance.waitInterval=2000",
    "-Drocketmq.client.rebalance.minInterval=100",
)

# As 4.9.8 has it, as 5.x has it.
_MOVED = (
    ("rocketmq.common.protocol.heartbeat.", "rocketmq.remoting.protocol.heartbeat."),
    ('"subCommandList"', '"SUB_COMMANDS"'),
)


def compiled(peers: Peers, program: str) -> Path:
    """Compile a program of `java/` where it has changed; return the folder of its classes."""
    source = (HERE / "java" / f"{program}.java").read_text()
    if not peers.version.startswith("4."):
        for old, new in _MOVED:
            source = source.replace(old, new)
    digest = hashlib.sha256(f"{peers.version}{source}".encode()).hexdigest()[:16]
    root = peers.folder.parent
    folder = root / f"{program}-{peers.version}-{digest}"
    with locked(root, program):
        if not (folder / f"{program}.class").exists():
            folder.mkdir(parents=True, exist_ok=True)
            file = folder / f"{program}.java"
            file.write_text(source)
            run_tool(
                "javac", "-nowarn", "-encoding", "UTF-8", "-proc:none", "-cp", peers.class_path,
                "-d", str(folder), str(file),
            )  # fmt: skip
    return folder


class JavaProgram(JavaProcess):
    """One of our programs over one release of the official client."""

    def __init__(self, peers: Peers, program: str, *arguments: str, home: Path) -> None:
        name = " ".join([program, *arguments[:1]])
        super().__init__(
            peers,
            f"{name} {peers.version}",
            program,
            arguments,
            home=home,
            java_options=(*JAVA_SMALL, *_PATIENCE),
        )
        place = self.command.index("-cp") + 1
        self.command[place] = f"{compiled(peers, program)}:{self.command[place]}"


class JavaSession(JavaProgram):
    """A program that runs many commands in one process; starting one for each takes a second."""

    def ask(self, *words: str, timeout_s: float = 60.0) -> list[str]:
        """Run one command and return the lines that it printed."""
        assert self._process is not None
        assert self._process.stdin is not None
        begin = len(self.lines)
        self._process.stdin.write("\t".join(words) + "\n")
        self._process.stdin.flush()

        def is_done() -> bool:
            if not self.running:
                raise PeerError(f"{self.name} ended in {' '.join(words)}:\n{self.tail()}")
            return _END in self.lines[begin:]

        wait_until(is_done, timeout_s=timeout_s, what=" ".join(words), every_s=0.01)
        return self.lines[begin : self.lines.index(_END, begin)]
