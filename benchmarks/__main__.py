"""All benchmarks, or one: `python -m benchmarks [SUITE] [its options]`, with SUITE of SUITES."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
SUITES = (
    "nameserver",
    "store",
    "broker",
    "clients",
    "filters",
    "transactions",
    "spark",
    "replication",
    "timer",
)


def main(words: list[str]) -> int:
    """Run suites one after another, each in a process of its own; the worst exit code counts."""
    if words and words[0] not in SUITES:
        wanted = "" if words[0] in ("-h", "--help") else f"there is no suite {words[0]}; "
        print(f"{wanted}use: python -m benchmarks [{'|'.join(SUITES)}] [options]", file=sys.stderr)
        return 0 if not wanted else 2
    worst = 0
    for suite in words[:1] or SUITES:
        if not words:
            print(f"== {suite}", flush=True)
        command = [sys.executable, str(HERE / f"{suite}.py"), *words[1:]]
        worst = max(worst, abs(subprocess.run(command, check=False).returncode))
    return worst


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
