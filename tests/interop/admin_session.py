"""Apache's mqadmin as one process that runs many commands; see `java/AdminSession.java`."""

from __future__ import annotations

import fcntl
import hashlib
import subprocess
from pathlib import Path

from peers import HERE, JavaProcess, PeerError, Peers, wait_until

_END = "=== end of command ==="


class AdminSession(JavaProcess):
    """One running tool, for the cluster of one name server."""

    def __init__(self, peers: Peers, home: Path, name_server: str) -> None:
        super().__init__(peers, "mqadmin session", "AdminSession", home=home)
        place = self.command.index("-cp") + 1
        self.command[place] = f"{_compiled(peers)}:{self.command[place]}"
        self._name_server = name_server

    def run(self, *arguments: str, timeout_s: float = 60.0) -> str:
        """Run one command and return what it printed."""
        assert self._process is not None
        assert self._process.stdin is not None
        begin = len(self.lines)
        words = (arguments[0], "-n", self._name_server, *arguments[1:])
        self._process.stdin.write("\t".join(words) + "\n")
        self._process.stdin.flush()

        def is_done() -> bool:
            if not self.running:
                raise PeerError(f"mqadmin ended in {' '.join(arguments)}:\n{self.tail()}")
            return _END in self.lines[begin:]

        wait_until(is_done, timeout_s=timeout_s, what=" ".join(arguments), every_s=0.01)
        end = self.lines.index(_END, begin)
        return "\n".join(self.lines[begin:end]).strip("\n")


def _compiled(peers: Peers) -> Path:
    """Compile the program where it has changed; the classes are kept beside Apache's."""
    source = HERE / "java" / "AdminSession.java"
    digest = hashlib.sha256(source.read_bytes()).hexdigest()[:16]
    folder = peers.folder.parent / f"admin-session-{digest}"
    with (peers.folder.parent / "admin-session.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "AdminSession.class").exists():
            folder.mkdir(parents=True, exist_ok=True)
            done = subprocess.run(
                ["javac", "-nowarn", "-encoding", "UTF-8", "-cp", peers.class_path, "-d",
                 str(folder), str(source)],
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            if done.returncode != 0:
                raise PeerError(f"javac failed:\n{done.stderr[-3000:]}")
    return folder
