"""Fuzz the decoders with atheris, one after another.

    python tests/fuzz/run.py --seconds 60 [--target frames]

Prints the number of runs of each, and of findings; what was found is kept in build/fuzz and makes
the exit code 1. `--reproduce FILE --target T` runs one kept input again, with its traceback.
"""

from __future__ import annotations

import argparse
import pathlib
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parent))

ROOT = pathlib.Path(__file__).parents[2]
FINDINGS = ROOT / "build" / "fuzz"
INPUT_BYTES_MAX = 4096
INPUT_SECONDS_MAX = 5  # Instrumented Python is slow; a loop that does not advance takes for ever.
NAMES = [
    "frames",
    "header_json",
    "header_binary",
    "typed_headers",
    "fastjson",
    "bodies",
    "register_body",
    "record",
    "batch",
    "properties",
    "compression",
    "sql92",
    "ha_stream",
    "raft",
]


def main() -> int:
    parser = argparse.ArgumentParser(description="Fuzz the decoders with atheris.")
    parser.add_argument("--seconds", type=int, default=60, help="time for each target")
    parser.add_argument("--target", action="append", choices=NAMES, help="only this one; repeat")
    parser.add_argument("--seed", type=int, default=1, help="of the fuzzer's own chance")
    parser.add_argument("--reproduce", metavar="FILE", help="run one input of the target again")
    parser.add_argument("--child", metavar="CORPUS", help=argparse.SUPPRESS)
    options = parser.parse_args()
    names = options.target or NAMES
    if options.reproduce:
        from targets import TARGETS

        TARGETS[names[0]].check(pathlib.Path(options.reproduce).read_bytes())
        print("no finding")
        return 0
    if options.child:
        _fuzz(names[0], options)
        return 0
    failed = [name for name in names if not _run(name, options)]
    print(f"targets={len(names)} findings={len(failed)} {' '.join(failed)}".rstrip())
    return 1 if failed else 0


def _run(name: str, options: argparse.Namespace) -> bool:
    """Fuzz one target in a process of its own; whether nothing was found."""
    from targets import TARGETS

    with tempfile.TemporaryDirectory(prefix=f"fuzz-{name}-") as corpus:
        for number, seed in enumerate(TARGETS[name].seeds()):
            (pathlib.Path(corpus) / f"seed-{number}").write_bytes(seed[:INPUT_BYTES_MAX])
        command = [sys.executable, __file__, "--target", name, "--child", corpus]
        command += ["--seconds", str(options.seconds), "--seed", str(options.seed)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    runs = re.search(r"Done (\d+) runs in (\d+) second", done.stderr)
    if done.returncode == 0 and runs is not None:
        print(f"{name:16} {int(runs[1]):>12,} runs in {runs[2]} s, no finding", flush=True)
        return True
    print(f"{name:16} FINDING", flush=True)
    print(done.stdout[-4000:] + done.stderr[-4000:], flush=True)
    return False


def _fuzz(name: str, options: argparse.Namespace) -> None:
    import atheris

    with atheris.instrument_imports(include=["skylark.protocol"]):
        from targets import TARGETS
    FINDINGS.mkdir(parents=True, exist_ok=True)
    arguments = [
        sys.argv[0],
        options.child,
        f"-max_total_time={options.seconds}",
        f"-max_len={INPUT_BYTES_MAX}",
        f"-timeout={INPUT_SECONDS_MAX}",
        "-rss_limit_mb=2048",
        f"-seed={options.seed}",
        f"-artifact_prefix={FINDINGS}/{name}-",
        "-print_final_stats=0",
    ]
    atheris.Setup(arguments, TARGETS[name].check)
    atheris.Fuzz()


if __name__ == "__main__":
    sys.exit(main())
