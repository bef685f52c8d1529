"""The cluster that the interop tests look at, and which name server stands in it.

The name server under test is ours; with SKYLARK_INTEROP_NAMESRV=apache it is Apache's, and then
every test must pass as well: a test that Apache's own name server fails is wrong.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from peers import ApacheBroker, NameServer

# Both name servers of a comparison run with these.
SETTINGS = {"orderMessageEnable": "true"}

MakeSubject = Callable[..., NameServer]


def subject_is_apache() -> bool:
    """Whether Apache's name server stands in the place of ours."""
    chosen = os.environ.get("SKYLARK_INTEROP_NAMESRV", "skylark")
    assert chosen in ("skylark", "apache"), f"SKYLARK_INTEROP_NAMESRV={chosen}: skylark or apache"
    return chosen == "apache"


@dataclass
class Cluster:
    """Two brokers that register with two name servers under test and with one of Apache's."""

    subjects: list[NameServer]
    apache: NameServer
    brokers: list[ApacheBroker]
    home: Path

    @property
    def address(self) -> str:
        """The name servers under test, as clients are told."""
        return ";".join(server.address for server in self.subjects)
