"""Apache's own filter evaluator as a program that answers questions."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence

from java_programs import compiled
from peers import Peers


def ask(peers: Peers, requests: Sequence[str]) -> list[str]:
    """One answer for each request; see `java/FilterPeer.java` for both."""
    class_path = f"{compiled(peers, 'FilterPeer')}:{peers.class_path}"
    done = subprocess.run(
        ["java", "-Xmx256m", "-XX:+UseSerialGC", "-cp", class_path, "FilterPeer"],
        input="".join(f"{request}\n" for request in requests),
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "JAVA_TOOL_OPTIONS": ""},
    )
    return [line for line in done.stdout.splitlines() if line]
