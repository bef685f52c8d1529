"""The faults of `make test` at any scale, with a result file.

    .venv/bin/python tests/campaign/run.py                      every part, ten times make test
    .venv/bin/python tests/campaign/run.py --scale 50 --seed 7  more of it, from other seeds
    .venv/bin/python tests/campaign/run.py --parts states kills --minutes 80
    .venv/bin/python tests/campaign/run.py --replay "steady seed=1 page=512 changes=9 how='...'"

    part        what one unit of scale is                                       invariants
    states      2,000 states that a crash could leave                           I04 I15 I17
    garbled     1,000 damaged files                                             I05 I06
    kills       10 writers killed with kill -9, on real files                   I01
    brokers     10 brokers killed with kill -9 under producers and consumers    I01
    power       20 power cuts under a writer, on ext4 where it can be mounted   I02 I08 I17
    simpower    100 power cuts on the simulated disk                            I02 I08
    flushes     20 flush errors                                                 I07
    full        10 disks that fill up, at one step each                         I23
    replicas    4 minutes of a master and its replicas under faults             I09 I10
    raft        100 minutes of a Raft group under faults                        I11 I13
    groups      10 minutes of a Raft group with its stores and links            I11 I13 H5
    members     2 runs of whole brokers in a Raft group, tables and locks too     I09 I10 I19 I22
    transactions  10 runs of transactions under crashes, 60 crashes           I18
    spark       50 kills of drivers, workers and brokers under chains of Spark  I31
                jobs, 100,000 rows; ten units at most, some minutes each
    prove       one run of `skylark prove`, 20 s of faults; the configurations in turn   4.1 to 4.4
    planted     every planted bug, whatever the scale                           4.5

Parts that end by themselves, spark and planted, come first and are done whole; the others share the
minutes that are left. The result goes to campaign-results/, one JSON file for each run: seeds,
counts, durations, findings and facts about the machine. Exit status 1 if anything was found; each
finding names the command that shows it again.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "crash"), str(HERE.parent / "simulation")]

import crash_states  # noqa: E402
import garbling  # noqa: E402
import planted_bugs  # noqa: E402
import sim_power_cuts  # noqa: E402
import test_raft as raft_runs  # noqa: E402
import test_raft_brokers as member_runs  # noqa: E402
import test_raft_group as group_runs  # noqa: E402
import test_replication_faults as replica_runs  # noqa: E402
import transaction_crashes  # noqa: E402
from crash_script import ASYNC, SCRIPTS, SYNC  # noqa: E402
from disk_errors import PLACES, flush_error, full_disk  # noqa: E402

from skylark.errors import SkylarkError  # noqa: E402

RESULTS = HERE.parents[1] / "campaign-results"
KILLED_WRITER = HERE.parent / "crash" / "killed_writer.py"
KILLED_BROKER = HERE.parent / "integration" / "killed_broker.py"
SPARK_CHAIN = HERE.parent / "integration" / "spark_chain.py"
SELF = "tests/campaign/run.py"
SPARK_KILLS = 50

Unit = Callable[[int], dict[str, Any]]
"""One unit of a part: takes a seed, returns counts; `findings` is a list of (where, problem)."""


# Parts.


def states(seed: int) -> dict[str, Any]:
    names = sorted(SCRIPTS)
    total = crash_states.Tally()
    for number in range(4):
        name = names[(seed * 4 + number) % len(names)]
        page_bytes = (512, 2048, 4096)[seed % 3]
        total.add(crash_states.campaign(name, seed=seed, page_bytes=page_bytes, wanted=500))
    return {
        "states": total.states,
        "recoveries_cut_short": total.nested,
        "findings": [(f.where, f.problem) for f in total.findings],
    }


def garbled(seed: int) -> dict[str, Any]:
    tally, outcomes = garbling.campaign(seed=seed, count=1_000)
    return {
        "cases": tally.states,
        **{f"cases {name}": count for name, count in outcomes.items()},
        "findings": [(f.where, f.problem) for f in tally.findings],
    }


def _killed(program: Path, seed: int, *arguments: str) -> dict[str, Any]:
    words = [*arguments, "--seed", str(seed)]
    done = subprocess.run([sys.executable, str(program), *words], capture_output=True, text=True)
    where = f"{program.relative_to(HERE.parents[1])} {' '.join(words)}"
    if not done.stdout:
        return {"findings": [(where, done.stderr[-2000:])]}
    outcome: dict[str, Any] = json.loads(done.stdout)
    outcome["findings"] = [(where, text) for text in outcome["findings"]]
    return outcome


def kills(seed: int) -> dict[str, Any]:
    return _killed(KILLED_WRITER, seed, "--cycles", "10", "--lanes", "4")


def brokers(seed: int) -> dict[str, Any]:
    outcome = _killed(KILLED_BROKER, seed, "--cycles", "10")
    # Medians do not add up; the longest times do stay.
    return {key: value for key, value in outcome.items() if "p50" not in key and key != "kept"}


def power(seed: int) -> dict[str, Any]:
    if subprocess.run([sys.executable, str(KILLED_WRITER), "--can-cut-power"]).returncode == 0:
        return _killed(KILLED_WRITER, seed, "--power", "--cycles", "20", "--lanes", "2")
    return simpower(seed)


def simpower(seed: int) -> dict[str, Any]:
    names = sorted(sim_power_cuts.CONFIGS)
    total = crash_states.Tally()
    for number in range(5):
        name = names[(seed + number) % len(names)]
        total.add(sim_power_cuts.cut_again_and_again(name, seed * 5 + number))
    return {
        "power_cuts": total.states,
        "findings": [(f.where, f.problem) for f in total.findings],
    }


def _attempts(cases: Iterator[tuple[str, Callable[[], bool]]], counted: str) -> dict[str, Any]:
    count = hits = 0
    findings = []
    for where, attempt in cases:
        count += 1
        try:
            hits += attempt()
        except (AssertionError, SkylarkError) as error:
            findings.append((where, f"{type(error).__name__}: {error}"))
    return {counted: count, f"{counted}_that_happened": hits, "findings": findings}


def flushes(seed: int) -> dict[str, Any]:
    def cases() -> Iterator[tuple[str, Callable[[], bool]]]:
        for number in range(20):
            place = PLACES[number % len(PLACES)]
            skip = seed * 4 % 40 + number // len(PLACES)
            config = (SYNC, ASYNC)[number % 2]
            where = f"flush error at {place} skip={skip} {config.flush_disk_type} seed={seed}"
            yield where, lambda c=config, p=place, s=skip: asyncio.run(flush_error(c, p, s, seed))

    return _attempts(cases(), "flush_errors")


def full(seed: int) -> dict[str, Any]:
    def cases() -> Iterator[tuple[str, Callable[[], bool]]]:
        for number in range(10):
            config, operation = (SYNC, ASYNC)[number % 2], ("create", "reserve")[number // 5]
            where = f"full disk at {operation} {number} {config.flush_disk_type} seed={seed}"
            skip = (seed * 10 + number) % 60
            yield where, lambda c=config, o=operation, s=skip: full_disk(c, o, s, seed)

    return _attempts(cases(), "full_disks")


def planted(seed: int) -> dict[str, Any]:
    caught, findings = 0, []
    for bug in planted_bugs.BUGS:
        with bug.plant():
            if planted_bugs.CHECKERS[bug.checker]() is None:
                findings.append((f"planted bug: {bug.name}", f"{bug.checker} did not notice"))
            else:
                caught += 1
    return {"planted": len(planted_bugs.BUGS), "caught": caught, "findings": findings}


def _minutes(name: str, seeds: range, run: Callable[[int], int]) -> dict[str, Any]:
    acked, findings = 0, []
    for seed in seeds:
        try:
            acked += run(seed)
        except (AssertionError, SkylarkError, TimeoutError) as error:
            findings.append((f"{name} seed={seed}", f"{type(error).__name__}: {error}"))
    return {"minutes": len(seeds), "acknowledged": acked, "findings": findings}


def raft_group(seed: int) -> int:
    return len(raft_runs.run(seed, 5 if seed % 3 == 0 else 3).acked)


def replicas(seed: int) -> dict[str, Any]:
    return _minutes("replicas", range(seed * 4, seed * 4 + 4), replica_runs.run_seed)


def members(seed: int) -> dict[str, Any]:
    return _minutes("members", range(seed * 2, seed * 2 + 2), member_runs.run_failovers)


def raft(seed: int) -> dict[str, Any]:
    return _minutes("raft", range(seed * 100, seed * 100 + 100), raft_group)


def whole_group(seed: int) -> int:
    return len(group_runs.run(seed, 5 if seed % 6 == 5 else 3).acked)


def groups(seed: int) -> dict[str, Any]:
    return _minutes("groups", range(seed * 10, seed * 10 + 10), whole_group)


def transactions(seed: int) -> dict[str, Any]:
    crashes = ended = checks = 0
    findings = []
    for number in range(seed * 10, seed * 10 + 10):
        story = transaction_run(number)
        crashes += story.crashes
        ended += len(story.decisions)
        checks += story.checks
        findings += [(f"transactions seed={number}", problem) for problem in story.problems]
    return {"crashes": crashes, "transactions": ended, "checks": checks, "findings": findings}


def transaction_run(seed: int) -> transaction_crashes.Story:
    """Power cuts where every send is flushed first; else the process alone is killed."""
    if seed % 5:
        return transaction_crashes.Run(seed, crashes=6, power_cuts=True).run()
    return transaction_crashes.Run(
        seed, crashes=6, power_cuts=False, flush_disk_type="ASYNC_FLUSH"
    ).run()


def spark(seed: int) -> dict[str, Any]:
    # Now and then a victim is gone before it is killed: a few more than are promised.
    words = ("--kills", str(SPARK_KILLS + 2), "--rows", "100000")
    outcome = _killed(SPARK_CHAIN, seed, *words)
    outcome.pop("seconds", None)
    if not outcome["findings"] and outcome["kills"] < SPARK_KILLS:
        where = f"{SPARK_CHAIN.relative_to(HERE.parents[1])} {' '.join(words)} --seed {seed}"
        outcome["findings"] = [(where, f"{outcome['kills']} kills, not {SPARK_KILLS}")]
    return outcome


PROOFS = (
    ("--mode", "alone", "--set", "flushDiskType=SYNC_FLUSH"),
    ("--mode", "sync-master"),
    ("--mode", "raft"),
    ("--mode", "master-slave"),
    ("--mode", "sync-master", "--set", "flushDiskType=SYNC_FLUSH"),
    ("--mode", "alone"),
)


def prove(seed: int) -> dict[str, Any]:
    """One configuration, broken in every way that this machine allows."""
    words = ["prove", *PROOFS[seed % len(PROOFS)], "--seconds", "20", "--seed", str(seed)]
    command = [sys.executable, "-m", "skylark.cli", *words, "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    where = f"skylark {' '.join(words)}"
    if not done.stdout:
        return {"findings": [(where, done.stderr[-2000:])]}
    outcome = json.loads(done.stdout)
    figures = outcome["figures"]
    found = [(where, f"{a['kind']} {a['count']}: {a['example']}") for a in outcome["anomalies"]]
    found += [(where, problem) for problem in outcome["problems"]]
    return {
        "acknowledged": figures["acknowledged"],
        "lost_as_allowed": figures["lost_as_allowed"],
        "lost_otherwise": figures["lost"] - figures["lost_as_allowed"],
        "faults": sum(outcome["tried"].values()),
        **{f"faults {kind}": count for kind, count in outcome["tried"].items()},
        "outage_ms_max": figures["longest_outage_ms"],
        "findings": found,
    }


MINUTES = {
    "replicas": replica_runs.run_seed,
    "raft": raft_group,
    "groups": whole_group,
    "members": member_runs.run_failovers,
}


PARTS: dict[str, Unit] = {
    "states": states,
    "garbled": garbled,
    "kills": kills,
    "brokers": brokers,
    "power": power,
    "simpower": simpower,
    "flushes": flushes,
    "full": full,
    "replicas": replicas,
    "raft": raft,
    "members": members,
    "groups": groups,
    "transactions": transactions,
    "spark": spark,
    "prove": prove,
    "planted": planted,
}
UNITS_MAX = {"spark": 10, "planted": 1}


# Replay.


def replay(where: str) -> int:
    """Show one finding again; 1 if it is still there."""
    if match := re.match(r"garbled (\S+) (\S+) at=(\d+) damage=(\w+) seed=(\d+)", where):
        name, path, at, damage, seed = match.groups()
        try:
            print(garbling.judge_case(name, path, int(at), damage, int(seed)))
        except (AssertionError, SkylarkError) as error:
            print(f"{type(error).__name__}: {error}")
            return 1
        return 0
    if match := re.match(r"(replicas|raft|groups|members) seed=(\d+)", where):
        try:
            MINUTES[match[1]](int(match[2]))
        except (AssertionError, SkylarkError, TimeoutError) as error:
            print(f"{type(error).__name__}: {error}")
            return 1
        return 0
    if match := re.match(r"transactions seed=(\d+)", where):
        problems = transaction_run(int(match[1])).problems
        print("\n".join(problems))
        return 1 if problems else 0
    if match := re.match(r"power cuts (\S+) seed=(\d+)", where):
        tally = sim_power_cuts.cut_again_and_again(match[1], int(match[2]))
    elif match := re.match(r"(\S+) seed=(\d+) page=(\d+) changes=(\d+) how=(['\"])(.*?)\5", where):
        name, seed, page, changes, _, how = match.groups()
        only = (int(changes), how)
        tally = crash_states.campaign(name, seed=int(seed), page_bytes=int(page), only=only)
    else:
        print(f"not a finding that can be replayed by itself: {where}", file=sys.stderr)
        return 2
    for finding in tally.findings:
        print(finding)
    print(f"{tally.states} judged, {len(tally.findings)} findings")
    return 1 if tally.findings else 0


def command_for(part: str, where: str) -> str:
    """The one command that shows a finding again."""
    if where.startswith("tests/"):
        return f"python {where}"
    if where.startswith("skylark "):
        return where
    if part in ("states", "garbled", "simpower", "transactions"):
        return f'python {SELF} --replay "{where}"'
    seed = re.search(r"seed=(\d+)", where)
    return f"python {SELF} --parts {part} --scale 1 --seed {seed[1] if seed else 1}"


# The run.


def machine() -> dict[str, Any]:
    """Facts that matter for the figures; nothing that names the machine."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "cpus": os.cpu_count(),
        "memory_gib": round(pages / 2**30, 1),
        "kernel": platform.release().split("-")[0],
        "system": platform.system(),
        "python": platform.python_version(),
        "compiled": bool(__import__("skylark.store.append", fromlist=["COMPILED"]).COMPILED),
    }


def run_part(name: str, units: int, seed: int, deadline: float) -> dict[str, Any]:
    """Run units of one part, each with its own seed, and add up what they count."""
    total: dict[str, Any] = {"first_seed": seed, "units": 0, "findings": []}
    started = time.monotonic()
    for number in range(units):
        if time.monotonic() > deadline:
            break
        counts = PARTS[name](seed + number)
        for where, problem in counts.pop("findings"):
            command = command_for(name, where)
            total["findings"].append({"where": where, "problem": problem, "replay": command})
            print(f"FOUND {where}: {problem}\n  again: {command}", flush=True)
        total["units"] += 1
        for key, count in counts.items():
            if key.endswith("_max"):
                total[key] = max(total.get(key, 0), count)
            else:
                total[key] = total.get(key, type(count)()) + count  # Numbers, or lists of notes.
    total["seconds"] = round(time.monotonic() - started, 1)
    return total


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", nargs="+", choices=sorted(PARTS), default=list(PARTS))
    parser.add_argument("--scale", type=int, default=100, help="units of each part")
    parser.add_argument("--seed", type=int, default=1, help="the first one; units count up")
    parser.add_argument("--minutes", type=float, default=80.0, help="stop after so long")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the file goes")
    parser.add_argument("--replay", metavar="FINDING", help="show one finding again")
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    if arguments.replay:
        return replay(arguments.replay)
    started = time.time()
    end = time.monotonic() + arguments.minutes * 60
    names = sorted(arguments.parts, key=lambda name: name not in UNITS_MAX)
    parts: dict[str, Any] = {}
    for number, name in enumerate(names):
        units, deadline = arguments.scale, end
        if name in UNITS_MAX:
            units = min(units, UNITS_MAX[name])
        else:
            now = time.monotonic()
            deadline = now + max(0.0, end - now) / (len(names) - number)
        parts[name] = run_part(name, units, arguments.seed, deadline)
        shown = {
            k: v for k, v in parts[name].items() if isinstance(v, int | float) and " " not in k
        }
        print(f"{name}: {json.dumps(shown)}", flush=True)
    findings = [finding for part in parts.values() for finding in part["findings"]]
    result = {
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(started)),
        "seconds": round(time.time() - started, 1),
        "seed": arguments.seed,
        "scale": arguments.scale,
        "machine": machine(),
        "parts": parts,
        "finding_count": len(findings),
    }
    arguments.results.mkdir(parents=True, exist_ok=True)
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(started))
    subject = "spark" if arguments.parts == ["spark"] else "store"
    path = arguments.results / f"{subject}-{stamp}-seed{arguments.seed}.json"
    path.write_text(json.dumps(result, indent=2) + "\n")
    print(f"{len(findings)} findings; {path}")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
