"""What `skylark cluster` shows: rows for people, records for programs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ..admin import (
    BrokerGroup,
    ClusterStatus,
    DrainProgress,
    GrownTopic,
    GrowthPlan,
    MemberStatus,
    Planned,
    RestartCheck,
    Step,
)
from ..logs import escaped
from ..model.topic import perm_text
from .asking import time_text

MEMBER_COLUMNS: Final = {
    "broker": "broker",
    "id": "id",
    "role": "role",
    "address": "address",
    "state": "state",
    "writes": "writes",
    "topics": "topics",
    "queues": "queues",
    "unconsumed": "unconsumed",
    "disk": "disk",
    "version": "version",
    "cluster": "cluster",
}
GROWTH_COLUMNS: Final = {
    "topic": "topic",
    "state": "state",
    "read": "read",
    "write": "write",
    "permissions": "perm",
    "like": "like",
    "producers": "queues for producers",
}
CHECK_COLUMNS: Final = {
    "broker": "broker", "id": "id", "address": "address", "safe": "safe", "why": "why",
}  # fmt: skip
# Of what a member of a Raft group says; the rest is shown in lines.
RAFT_COLUMNS: Final = (
    "self id", "role", "term", "leader", "committed", "log end", "may vote", "elections",
)  # fmt: skip
STEP_WORDS: Final = {
    Step.WAITING: "waits until producers know the brokers before it again",
    Step.CHECKED: "may be restarted",
    Step.WRITES_OFF: "has no more writes: producers turn away",
    Step.SETTLED: "is not written to any more",
    Step.RESTARTING: "restarts",
    Step.BACK: "is back, and known to the name servers",
    Step.CAUGHT_UP: "has caught up",
    Step.WRITES_ON: "has its writes back",
}
_UNITS: Final = ("KiB", "MiB", "GiB", "TiB")


# Status.


def member_rows(status: ClusterStatus) -> list[dict[str, object]]:
    """A row for each process; what concerns the group is on its first."""
    rows: list[dict[str, object]] = []
    for group in status.groups:
        for number, member in enumerate(group.members):
            row: dict[str, object] = {
                "broker": group.name,
                "id": member.broker_id,
                "role": member.role,
                "address": member.address,
                "state": state_text(member),
                "version": member.version,
                "disk": f"{member.disk_used_ratio:.0%}" if member.is_reachable else None,
                "cluster": group.cluster,
            }
            if number == 0:
                row |= {
                    "writes": _writes(group),
                    "topics": len(group.own_topics),
                    "queues": sum(t.write_queue_nums for t in group.own_topics.values()),
                    "unconsumed": group.unconsumed,
                }
            rows.append(row)
    return rows


def raft_rows(status: ClusterStatus) -> list[dict[str, object]]:
    """A row for each member of a Raft group; all rows have the same keys."""
    members = [member for group in status.groups for member in group.members if member.raft]
    known = dict.fromkeys(key for member in members for key in member.raft.shown())
    keys = [key for key in RAFT_COLUMNS if key in known]
    return [
        {
            "broker": member.broker,
            "address": member.address,
            **{key: member.raft.shown().get(key) for key in keys},
        }
        for member in members
    ]


def raft_lines(status: ClusterStatus) -> Iterable[str]:
    """Whatever else the members say: problems of all of them, the rest from the leader alone."""
    for group in status.groups:
        for member in group.members:
            where = f"{member.broker} at {member.address}: "
            shown = {k: v for k, v in member.raft.shown().items() if v and k not in RAFT_COLUMNS}
            alone = [key for key in shown if key == "members" or "problem" in key]
            for key in alone:
                if member.is_master or key != "members":
                    yield clean(f"{where}{key} {shown[key]}")
            if member.is_master and len(shown) > len(alone):
                rest = (f"{key} {value}" for key, value in shown.items() if key not in alone)
                yield clean(where + ", ".join(rest))


def status_record(status: ClusterStatus) -> dict[str, object]:
    """All of it."""
    return {
        "safe": status.is_safe,
        "problems": [
            {"broker": problem.broker, "what": problem.what, "next_step": problem.next_step}
            for problem in status.problems
        ],
        "name_servers": [
            {"address": server.address, "reachable": server.info is not None}
            for server in status.name_servers
        ],
        "brokers": [
            {
                "broker": group.name,
                "cluster": group.cluster,
                "writable": group.is_writable,
                "wiped_at": list(group.wiped_at),
                "topics": len(group.own_topics),
                "read_queues": sum(t.read_queue_nums for t in group.own_topics.values()),
                "write_queues": sum(t.write_queue_nums for t in group.own_topics.values()),
                "unconsumed": group.unconsumed,
                "members": [_member_record(member) for member in group.members],
            }
            for group in status.groups
        ],
    }


def _member_record(member: MemberStatus) -> dict[str, object]:
    return {
        "id": member.broker_id,
        "address": member.address,
        "role": member.role,
        "reachable": member.is_reachable,
        "in_sync": member.is_in_sync,
        "lag_bytes": member.lag_bytes,
        "following": member.is_following,
        "version": member.version,
        "started": time_text(member.booted_at_ms),
        "log_end": member.log_end,
        "disk_used_ratio": member.disk_used_ratio,
        "permission": member.permission,
        "trouble": member.trouble or None,
        "raft": member.raft.items,
    }


def state_text(member: MemberStatus) -> str:
    """How one process stands, in few words."""
    if not member.is_reachable:
        return "not reachable"
    if member.is_master:
        return "serves"
    if member.is_following is False:
        return "does not follow"
    if member.lag_bytes is None:
        return "no master"
    return "in sync" if member.is_in_sync else f"{bytes_text(member.lag_bytes)} behind"


def _writes(group: BrokerGroup) -> str:
    if group.wiped_at:
        return "wiped"
    return "yes" if group.is_writable else "no"


def notes(status: ClusterStatus) -> Iterable[str]:
    """What an operator would want to know, though nothing is wrong with it."""
    versions = {m.version for group in status.groups for m in group.members if m.version}
    if len(versions) > 1:
        yield f"brokers have different versions: {', '.join(sorted(versions))}"
    for group in status.groups:
        if group.wiped_at:
            yield (
                f"{group.name} has no writes at {', '.join(group.wiped_at)}, and gets them back "
                f"when it registers anew; `skylark cluster drain {group.name} --undo` does it now"
            )
        elif group.master is not None and group.master.is_reachable and not group.is_writable:
            yield f"{group.name} is drained; `skylark cluster drain {group.name} --undo` ends that"


# Growing.


def growth_rows(plan: GrowthPlan, grown: Iterable[GrownTopic]) -> list[dict[str, object]]:
    """A row for each topic."""
    seen = {item.topic: item for item in grown}
    rows: list[dict[str, object]] = []
    for item in plan.topics:
        after = seen.get(item.topic.name)
        rows.append(
            {
                "topic": item.topic.name,
                "state": "made" if after and item.state is Planned.NEW else item.state.value,
                "read": item.topic.read_queue_nums,
                "write": item.topic.write_queue_nums,
                "permissions": perm_text(item.topic.perm),
                "like": item.source,
                "producers": after and f"{after.queues_before} -> {after.queues_after}",
                "brokers": list(after.brokers) if after else None,
            }
        )
    return rows


def growth_record(
    plan: GrowthPlan, grown: Iterable[GrownTopic], *, is_done: bool
) -> dict[str, object]:
    """All of a plan, and what came of it."""
    return {
        "broker": plan.broker,
        "address": plan.address,
        "done": is_done,
        "topics": growth_rows(plan, grown),
        "groups": [
            {"group": item.group.group_name, "state": item.state.value, "like": item.source}
            for item in plan.groups
        ],
        "warnings": list(growth_warnings(plan)),
    }


def growth_warnings(plan: GrowthPlan) -> Iterable[str]:
    """What is not as it could be."""
    ordered = [item.topic.name for item in plan.topics if item.state is Planned.ORDERED]
    if ordered:
        yield (
            f"ordered topics are left out: {', '.join(ordered)}; --order-topics adds them, and "
            "their keys move to other queues"
        )
    others = [item.topic.name for item in plan.topics if item.state is Planned.OTHER]
    if others:
        yield f"there with other settings, and left so: {', '.join(others)}"
    groups = [item.group.group_name for item in plan.groups if item.state is Planned.OTHER]
    if groups:
        yield f"groups with other settings, and left so: {', '.join(groups)}"
    if not plan.is_writable:
        yield (
            f"{plan.broker} takes no writes, so producers do not see it; "
            f"`skylark cluster drain {plan.broker} --undo` gives them back"
        )


# Draining.


def drain_line(progress: DrainProgress) -> str:
    """How far a drain is, in one line."""
    if progress.messages == 0 and not progress.is_done:
        left_s = max(0, progress.settle_ms - progress.quiet_ms) / 1000
        return f"{progress.broker}: all is read; quiet for {left_s:.0f} s more and it is empty"
    if progress.is_done:
        return f"{progress.broker}: empty"
    return f"{progress.broker}: {progress.messages:,} messages left: {left_text(progress)}"


def left_text(progress: DrainProgress) -> str:
    """What is left, the most first."""
    unread = sorted(progress.unread, key=lambda item: -item.messages)
    parts = [
        f"{item.group} has {item.messages:,} of {item.topic}"
        + ("" if item.members else " and is offline (start it, or --ignore it)")
        for item in unread[:3]
    ]
    if len(unread) > 3:
        parts.append(f"{len(unread) - 3} more")
    if progress.delayed:
        parts.append(f"{progress.delayed:,} delayed")
    if progress.timers:
        repeats = f" ({progress.repeats} repeat: cancel them)" if progress.repeats else ""
        parts.append(f"{progress.timers:,} timers{repeats}")
    if progress.half_messages:
        parts.append(f"{progress.half_messages:,} half messages")
    return clean(", ".join(parts)) or "somebody still writes to it"


def drain_record(progress: DrainProgress) -> dict[str, object]:
    """How a drain ended."""
    return {
        "broker": progress.broker,
        "done": progress.is_done,
        "unread": [
            {
                "group": item.group,
                "topic": item.topic,
                "messages": item.messages,
                "members": item.members,
            }
            for item in progress.unread
        ],
        "delayed": progress.delayed,
        "timers": progress.timers,
        "repeats": progress.repeats,
        "half_messages": progress.half_messages,
        "dead_letters": progress.dead_letters,
        "notes": list(progress.notes),
    }


# Restarting.


def check_row(check: RestartCheck) -> dict[str, object]:
    """Whether one process could be restarted now."""
    member = check.member
    return {
        "broker": member.broker,
        "id": member.broker_id,
        "address": member.address,
        "safe": not check.obstacles,
        "why": [str(problem) for problem in check.obstacles],
    }


def bytes_text(size: int) -> str:
    """A number of bytes as people read it."""
    if size < 1024:
        return f"{size} bytes"
    shown = float(size)
    for unit in _UNITS:
        shown /= 1024
        if shown < 1024 or unit == _UNITS[-1]:
            return f"{shown:.1f} {unit}"
    raise AssertionError("the last unit takes every size")


def clean(text: str) -> str:
    """Words of brokers and clients, fit for a terminal."""
    return escaped(text)
