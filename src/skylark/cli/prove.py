"""`skylark prove`: break a cluster of one's own configuration, and see whether its promises hold.

skylark prove --explain                      what SEND_OK means under a configuration
skylark prove --mode sync-master             try it: processes, faults, a verdict
skylark prove check history.jsonl            judge what an earlier run recorded with --keep
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..broker.config import BrokerConfig
from ..config import Flag, load, parse_set
from ..errors import ConfigError
from . import exits, roles

if TYPE_CHECKING:
    from ..prove.nodes import NodePlan
    from ..prove.promises import Facts

MODES = ("alone", "master-slave", "sync-master", "raft")
SECONDS_MAX = 86_400
_NAME = "broker-a"
_RAFT_MEMBERS = 3
_PLACEHOLDER = ";".join(f"n{number}-127.0.0.1:{40911 + number}" for number in range(_RAFT_MEMBERS))
_EPILOG = """\
The cluster is the run's own: processes on this machine, in network namespaces where that is allowed
(root on Linux), else on loopback; with directories of their own, which are removed. Settings come
from -c (once for each broker, master and replicas), or from --mode, and from --set; addresses,
paths and file sizes are the run's. Exit codes: 0 what is promised held, 1 it did not, 2 wrong use.
"""


def _parser(program: str) -> argparse.ArgumentParser:
    parser = roles.make_parser(
        program, "Break a cluster on purpose and see whether its promises hold.", _EPILOG
    )
    add = parser.add_argument
    add("-c", "--config", action="append", default=[], metavar="FILE", help="a broker's settings")
    add("--mode", metavar="|".join(MODES), help="a cluster without files (alone)")
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="set it for all brokers")
    add("--seconds", default="30", metavar="N", help="how long faults go on (30)")
    add("--seed", metavar="N", help="where chance starts; the same faults in the same order")
    add("--faults", metavar="LIST", help="which, joined by commas; all that can be done here")
    add("--network", default="auto", metavar="auto|namespaces|proxies", help="how nodes are joined")
    add("--keep", metavar="DIR", help="keep the history, logs and stores there")
    add("--explain", action="store_true", help="say what is promised, and stop")
    add("--json", action="store_true", help="print JSON")
    return parser


def _check_parser(program: str) -> argparse.ArgumentParser:
    parser = roles.make_parser(program, "Judge a history that a run has kept.", "")
    parser.add_argument("history", metavar="FILE", help="history.jsonl of --keep")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def main(argv: Sequence[str] | None = None, *, program: str = "skylark prove") -> int:
    """Parse the arguments and run; returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["check"]:
        checked = _check_parser(f"{program} check").parse_args(words[1:])
        return roles.guarded(program, lambda: _check(checked))
    arguments = _parser(program).parse_args(words)
    return roles.guarded(program, lambda: _main(program, arguments))


def _check(arguments: argparse.Namespace) -> int:
    from ..prove import History, judge, report

    with open(arguments.history, encoding="utf-8", errors="replace") as lines:
        verdict = judge(History.read(lines, arguments.history))
    if arguments.json:
        print(json.dumps(report.verdict_json(verdict), indent=2))
    else:
        for line in (*report.figure_lines(verdict), *report.anomaly_lines(verdict)):
            print(line)
        print("nothing is wrong with it" if verdict.is_clean else "NOT everything held")
    return exits.DONE if verdict.is_clean else exits.FAILED


def _main(program: str, arguments: argparse.Namespace) -> int:
    from ..prove import report

    seconds = _number(arguments.seconds, "--seconds", 1, SECONDS_MAX)
    given = arguments.seed
    seed = random.SystemRandom().randrange(1 << 31)
    seed = seed if given is None else _number(given, "--seed", 0, 2**63 - 1)
    if arguments.network not in ("auto", "namespaces", "proxies"):
        raise ConfigError(f"--network {arguments.network}: use auto, namespaces or proxies")
    nodes, facts, warnings = cluster_of(arguments)
    for warning in warnings:
        exits.complain(program, f"warning: {warning}")
    if arguments.explain:
        lines = report.promise_lines(facts)
        text = json.dumps(report.promises_json(facts), indent=2)
        print(text if arguments.json else "\n".join(lines))
        return exits.DONE
    kinds = _kinds(arguments.faults, facts)
    return _run(program, arguments, nodes, facts, kinds, seconds, seed)


def _number(text: str, flag: str, low: int, high: int) -> int:
    if not (text.isascii() and text.isdigit() and low <= int(text) <= high):
        raise ConfigError(f"{flag} {text}: expected a whole number from {low} to {high}")
    return int(text)


def _kinds(given: str | None, facts: Facts) -> list[str]:
    from ..prove.faults import KINDS

    if given is None:
        # Without a copy there is nothing to prove about a lost disk.
        return [kind for kind in KINDS if kind != "disk-lost" or facts.kind != "alone"]
    kinds = [word.strip() for word in given.split(",") if word.strip()]
    for kind in kinds:
        if kind not in KINDS:
            raise ConfigError(f"--faults {kind}: there is no such fault; use {', '.join(KINDS)}")
    return list(dict.fromkeys(kinds))


# The cluster.


def cluster_of(arguments: argparse.Namespace) -> tuple[list[NodePlan], Facts, list[str]]:
    """The brokers that are meant, and what of their settings decides what is promised."""
    from ..prove.nodes import NodePlan

    if arguments.mode is not None and arguments.mode not in MODES:
        raise ConfigError(f"--mode {arguments.mode}: use {', '.join(MODES)}")
    if arguments.mode is not None and arguments.config:
        raise ConfigError("--mode and -c exclude each other: files say themselves what they are")
    sets = [parse_set(text) for text in arguments.set]
    given = {flag.key: flag.text for flag in sets}
    drafts: list[tuple[Path | None, dict[str, str]]] = []
    if arguments.config:
        drafts = [(Path(name), dict(given)) for name in arguments.config]
    else:
        drafts = [(None, {**words, **given}) for words in _mode(arguments.mode or "alone")]
    nodes: list[NodePlan] = []
    configs: list[BrokerConfig] = []
    warnings: list[str] = []
    for file, words in drafts:
        flags = [Flag(key, text, "--set") for key, text in words.items()]
        loaded = load(BrokerConfig, file=file, flags=flags, env={})
        if not loaded.config.broker_name:
            words["brokerName"] = _NAME
            loaded = load(
                BrokerConfig, file=file, flags=[*flags, Flag("brokerName", _NAME)], env={}
            )
        warnings += [text for text in loaded.warnings if text not in warnings]
        config = loaded.config
        name = config.broker_name
        number = sum(other.broker_name == name for other in configs)
        configs.append(config)
        nodes.append(NodePlan(f"{name}.{number}", name, words, file))
    return nodes, _facts(configs), warnings


def _mode(mode: str) -> list[dict[str, str]]:
    name = {"brokerName": _NAME}
    if mode == "alone":
        return [name]
    if mode == "raft":
        raft = {"enableDLegerCommitLog": "true", "dLegerGroup": _NAME, "dLegerPeers": _PLACEHOLDER}
        return [{**name, **raft, "dLegerSelfId": f"n{at}"} for at in range(_RAFT_MEMBERS)]
    role = "SYNC_MASTER" if mode == "sync-master" else "ASYNC_MASTER"
    return [
        {**name, "brokerRole": role},
        {**name, "brokerRole": "SLAVE", "brokerId": "1"},
    ]


def _facts(configs: Sequence[BrokerConfig]) -> Facts:
    """The weakest of several groups counts."""
    from ..prove.promises import Facts

    groups: dict[str, list[BrokerConfig]] = {}
    for config in configs:
        groups.setdefault(config.broker_name, []).append(config)
    kinds = {_kind(name, members) for name, members in groups.items()}
    kind = next(kind for kind in ("alone", "async", "sync", "raft") if kind in kinds)
    if "raft" in kinds and len(kinds) > 1:
        raise ConfigError("Raft groups and masters with replicas: prove one kind at a time")
    lazy = [config for config in configs if config.flush_disk_type != "SYNC_FLUSH"]
    return Facts(
        kind=kind,
        members=min(len(members) for members in groups.values()),
        is_sync_flush=not lazy,
        flush_interval_ms=max(config.flush_interval_commit_log for config in configs),
        thorough_interval_ms=max(
            config.flush_commit_log_thorough_interval if config.flush_commit_log_least_pages else 0
            for config in configs
        ),
        save_interval_ms=max(config.flush_consumer_offset_interval for config in configs),
        sync_interval_ms=0
        if kind in ("alone", "raft")
        else max(config.slave_sync_interval_ms for config in configs),
        lease_ms=min(config.queue_lock_lease_ms for config in configs),
    )


def _kind(name: str, members: Sequence[BrokerConfig]) -> str:
    if any(config.is_raft for config in members):
        if not all(config.is_raft for config in members):
            raise ConfigError(f"brokerName={name}: set enableDLegerCommitLog alike in all files")
        return "raft"
    masters = [config for config in members if not config.is_replica]
    if len(masters) != 1:
        raise ConfigError(
            f"brokerName={name}: {len(masters)} masters; give one file of a master for each "
            "brokerName, and those of its replicas"
        )
    is_sync = masters[0].broker_role == "SYNC_MASTER"
    if len(members) == 1 and is_sync:
        raise ConfigError(
            f"brokerName={name}: a SYNC_MASTER without a replica never answers SEND_OK; give the "
            "file of its SLAVE as well"
        )
    if len(members) == 1:
        return "alone"
    return "sync" if is_sync else "async"


# The run.


def _run(
    program: str,
    arguments: argparse.Namespace,
    nodes: list[NodePlan],
    facts: Facts,
    kinds: list[str],
    seconds: int,
    seed: int,
) -> int:
    from ..prove import fabric as fabrics
    from ..prove import report, runner
    from ..prove.faults import missing
    from ..prove.nodes import NodeDied
    from ..prove.proxies import Proxies

    reason = fabrics.missing_for_namespaces() if arguments.network != "proxies" else "as asked"
    if arguments.network == "namespaces" and reason is not None:
        raise ConfigError(f"--network namespaces: {reason}; use --network proxies")
    fabric: fabrics.Fabric = fabrics.Namespaces() if reason is None else Proxies()
    network = fabric.name if reason is None else f"{fabric.name} ({reason})"
    skipped = {kind: why for kind in kinds if (why := missing(kind, fabric.name)) is not None}
    if arguments.faults is None and facts.kind == "alone":
        skipped["disk-lost"] = "without a copy there is nothing to prove"
    root = _place(arguments.keep)
    if os.geteuid() == 0:
        try:
            fabrics.leave_the_world(network=reason is None)
        except (OSError, subprocess.CalledProcessError):
            # A container may refuse: then mounts are as visible as any other, or refused as well.
            if reason is None:
                raise
    logger = logging.getLogger("skylark")
    level = logger.level
    logger.setLevel(logging.CRITICAL)  # Clients complain, as they should.
    plan = runner.ProofPlan(
        facts=facts,
        nodes=nodes,
        kinds=[kind for kind in kinds if kind not in skipped],
        seconds=seconds,
        seed=seed,
    )

    def progress(text: str) -> None:
        if sys.stderr.isatty():
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)

    keep = arguments.keep is not None
    try:
        outcome = runner.prove(plan, fabric, root, progress=progress, keep=keep)
    except (NodeDied, TimeoutError) as error:
        exits.complain(program, f"the cluster did not start: {error}; see its log with --keep DIR")
        return exits.FAILED
    except subprocess.CalledProcessError as error:
        said = (error.stderr or b"").decode(errors="replace").strip()
        exits.complain(program, f"{' '.join(error.cmd)[:200]}: {said}; try --network proxies")
        return exits.FAILED
    finally:
        logger.setLevel(level)
        progress("")
        if arguments.keep is None:
            shutil.rmtree(root, ignore_errors=True)
    for kind in plan.kinds:
        if kind not in outcome.tried:
            skipped.setdefault(kind, "time was over, or the run was; give more --seconds")
    facts_of: dict[str, Any] = {"seed": seed, "network": network}
    if arguments.json:
        print(json.dumps(report.outcome_json(facts, outcome, skipped, **facts_of), indent=2))
    else:
        print("\n".join(report.outcome_lines(facts, outcome, skipped, **facts_of)))
        if arguments.keep is not None:
            print(f"kept in {root}; judge it again: {program} check {root / 'history.jsonl'}")
    return exits.DONE if outcome.is_clean else exits.FAILED


def _place(keep: str | None) -> Path:
    if keep is None:
        return Path(tempfile.mkdtemp(prefix="skylark-prove-"))
    place = Path(keep).absolute()
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise ConfigError(f"--keep {keep}: it is there already; name an empty or new directory")
    place.mkdir(parents=True, exist_ok=True)
    return place
