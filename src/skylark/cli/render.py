"""Results for people and for programs: a table on a terminal, plain text in a pipe, or JSON.

What is shown comes from brokers and clients, so every value is escaped before a terminal sees it.
"""

from __future__ import annotations

import json
import os
import sys
import unicodedata
from collections.abc import Mapping, Sequence
from typing import TextIO

from ..logs import escaped

Row = Mapping[str, object]

_GAP = "  "


def show_table(
    rows: Sequence[Row],
    columns: Mapping[str, str],
    *,
    as_json: bool = False,
    out: TextIO | None = None,
) -> None:
    """Show rows: the named columns (key to title) for people, every key as JSON."""
    stream = sys.stdout if out is None else out
    if as_json:
        _write_json([dict(row) for row in rows], stream)
        return
    cells = [[_text(row.get(key)) for key in columns] for row in rows]
    titles = list(columns.values())
    if is_terminal(stream):
        _write_rich(titles, cells, stream)
    else:
        _write_plain([[title.upper() for title in titles], *cells], stream)


def show_record(
    record: Row, titles: Mapping[str, str], *, as_json: bool = False, out: TextIO | None = None
) -> None:
    """Show one record: a line per field for people, one object as JSON."""
    stream = sys.stdout if out is None else out
    if as_json:
        _write_json(dict(record), stream)
        return
    _write_plain([[title, _text(record.get(key))] for key, title in titles.items()], stream)


def show_line(value: object, *, out: TextIO | None = None) -> None:
    """Show one JSON document as one line, for programs that read while it goes on."""
    stream = sys.stdout if out is None else out
    print(json.dumps(value, ensure_ascii=True), file=stream, flush=True)


def is_terminal(stream: TextIO) -> bool:
    """Say whether a stream is a terminal that understands more than plain text."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def _text(value: object) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_text, value)) or "-"
    return escaped(str(value))


def _write_json(value: object, stream: TextIO) -> None:
    json.dump(value, stream, indent=2, ensure_ascii=True)
    stream.write("\n")


def _write_plain(lines: Sequence[Sequence[str]], stream: TextIO) -> None:
    widths = [max(map(_width, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        padded = [
            cell + " " * (width - _width(cell)) for cell, width in zip(line, widths, strict=True)
        ]
        stream.write(_GAP.join(padded).rstrip() + "\n")


def _width(text: str) -> int:
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1
        for char in text
    )


def _write_rich(titles: Sequence[str], cells: Sequence[Sequence[str]], stream: TextIO) -> None:
    # Only a terminal pays for rich, which also honours NO_COLOR and the terminal's width.
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in titles:
        table.add_column(title, overflow="fold")
    for line in cells:
        table.add_row(*map(Text, line))  # Text takes brackets as they are, not as markup.
    Console(file=stream).print(table)
