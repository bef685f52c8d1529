"""Apache's mqadmin as one process that runs many commands; see `java/AdminSession.java`."""

from __future__ import annotations

from pathlib import Path

from java_programs import JavaSession
from peers import Peers


class AdminSession(JavaSession):
    """One running tool, for the cluster of one name server."""

    def __init__(self, peers: Peers, home: Path, name_server: str) -> None:
        super().__init__(peers, "AdminSession", home=home)
        self._name_server = name_server

    def run(self, *arguments: str, timeout_s: float = 60.0) -> str:
        """Run one command and return what it printed."""
        words = (arguments[0], "-n", self._name_server, *arguments[1:])
        return "\n".join(self.ask(*words, timeout_s=timeout_s)).strip("\n")
