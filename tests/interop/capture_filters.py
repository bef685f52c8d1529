"""Records what Apache's evaluator says, for tests/golden/captured/sql92-4.9.8.jsonl.

    python tests/interop/capture_filters.py

One line for each expression: its text, then pairs of properties and answer (true, false, null or
error); an expression that Apache refuses has the one answer "invalid" and no properties. The last
lines hold bits of its bloom filter. The same expressions are made each time.
"""

from __future__ import annotations

import base64
import json
import random
import subprocess
import sys
from pathlib import Path

from filter_peer import ask
from peers import HERE, Peers

sys.path.insert(0, str(HERE.parent / "property"))

from sql_cases import VALUES, make_properties, make_soup, make_tree, render

FILE = HERE.parent / "golden" / "captured" / "sql92-4.9.8.jsonl"
SEED = 498

HAND = HERE / "sql92_expressions.txt"


def _hand() -> list[str]:
    lines = HAND.read_text(encoding="utf-8").split("\n")[:-1]
    return [
        line.encode().decode("unicode_escape") if line.isascii() and "\\" in line else line
        for line in lines
    ]


def main() -> None:
    """Ask, and write the file."""
    rng = random.Random(SEED)
    asked: dict[str, list[dict[str, str]]] = {}
    for text in _hand():
        sets: list[dict[str, str]] = [
            {},
            {"b": "x"},
            {"a": "5", "b": "true"},
            {"a": "x", "b": "5", "c": "9"},
        ]
        sets += [
            {"a": value, "b": rng.choice(VALUES), "c": "7", "TAGS": "TagA"}
            for value in rng.sample(VALUES, 6)
        ]
        asked[text] = sets
    for text in (
        "a > 5",
        "a = 5",
        "a > 5.0",
        "a = 5.0",
        "a > 5L",
        "a >= 2147483648",
        "a = b",
        "a < b",
        "b <= a",
    ):
        asked.setdefault(text, []).extend({"a": value, "b": "5"} for value in VALUES)
    for depth in (0, 1, 1, 2, 2, 3):
        for _ in range(200):
            asked.setdefault(render(make_tree(rng, depth), rng), []).extend(
                make_properties(rng) for _ in range(4)
            )
    for _ in range(500):
        asked.setdefault(make_soup(rng), []).extend(make_properties(rng) for _ in range(2))

    def coded(text: str) -> str:
        return base64.b64encode(text.encode()).decode()

    requests, places = [], []
    for text, sets in asked.items():
        for properties in sets:
            words = [coded(word) for item in properties.items() for word in item]
            requests.append("\t".join(("sql", coded(text), *words)))
            places.append((text, properties))
    names = (
        ["CID_1#TopicTest"],
        ["g#t", "另一组#t"],
        ["x"],
        [""],
        ["a" * 15, "a" * 16, "a" * 17, "b" * 40],
    )
    sizes = ((20, 32), (20, 64), (1, 32), (10, 128), (99, 1), (50, 7))
    blooms = [(*size, some) for size in sizes for some in names]
    for f, n, some in blooms:
        requests.append("\t".join(("bloom", str(f), str(n), *map(coded, some))))
    answers = ask(Peers.fetch(), requests)
    assert len(answers) == len(requests)
    results: dict[str, list[list[object]]] = {}
    for (text, properties), said in zip(places, answers, strict=False):
        known = results.setdefault(text, [])
        if said != "invalid":
            known.append([properties, said.split()[0]])
    lines = [
        json.dumps([text, *(cases or ["invalid"])], ensure_ascii=False)
        for text, cases in results.items()
    ]
    for (f, n, some), said in zip(blooms, answers[len(places) :], strict=True):
        k, m, positions, bits = said.split()
        bloom = {"f": f, "n": n, "names": some, "k": int(k), "m": int(m),
                 "first": [int(one) for one in positions.split(",")], "bits": bits}  # fmt: skip
        lines.append(json.dumps(bloom, ensure_ascii=False))
    FILE.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(
        f"{FILE.relative_to(Path.cwd())}: {len(results)} expressions, {len(places)} answers, "
        f"{len(blooms)} filters"
    )


if __name__ == "__main__":
    try:
        main()
    except subprocess.CalledProcessError as error:
        sys.exit(f"Apache's evaluator failed:\n{error.stderr[-3000:]}")
