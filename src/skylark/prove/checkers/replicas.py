"""Do all replicas tell the same story, as their files have it?"""

from __future__ import annotations

from ..anomalies import Anomalies
from ..story import Story


def check_replicas(story: Story, anomalies: Anomalies) -> None:
    """Find places where replicas differ, and replicas that did not catch up."""
    lying: dict[tuple[int, int], tuple[int, int]] = {}
    counts: dict[str, dict[str, int]] = {}  # Broker → node → messages.
    last: dict[str, int] = {}
    logs: dict[str, dict[str, tuple[int, int, int]]] = {}
    for at, event in enumerate(story.history):
        group = event.node.rpartition(".")[0]
        if event.f == "replica":
            counts.setdefault(group, {}).setdefault(event.node, 0)
            last[event.node] = at
            if event.id == -1:  # It has been read, and has nothing.
                continue
            counts[group][event.node] += 1
            spot = (story.place(event.topic, event.q), event.off)
            other, seen_at = lying.setdefault(spot, (event.id, at))
            if other != event.id:
                text = f"{story.history[seen_at]}, and {event}"
                anomalies.add("replica-divergence", at, text)
        elif event.f == "log":
            logs.setdefault(group, {})[event.node] = (event.off, event.id, at)
    for nodes in logs.values():
        _check_logs(nodes, story, anomalies)
    if not story.rules.level:
        return
    for nodes_of in counts.values():
        most = max(nodes_of.values())
        for node, count in nodes_of.items():
            if count < most:
                text = f"{node} has {count} messages, another {most}"
                anomalies.add("replica-behind", last[node], text)


def _check_logs(nodes: dict[str, tuple[int, int, int]], story: Story, anomalies: Anomalies) -> None:
    """Checksums are of the part that all have, so they are equal or the logs part before it."""
    first = next(iter(nodes))
    for node, (size, checksum, at) in nodes.items():
        if (size, checksum) != nodes[first][:2]:
            text = f"the first {size} bytes of the logs of {first} and {node} differ"
            anomalies.add("replica-divergence", at, text)
