"""What Spark has planned for a micro-batch, as its checkpoint says: brought to the disk, and named.

A broker has a decision on its disk before anybody sees a row of it. Spark leaves its own files to
the operating system: after a power cut on the driver's machine the note `offsets/7` may be gone,
and Spark would plan another micro-batch 7, of other rows, which tasks would take for the one that
is decided. So these files are brought to the disk first, and a decision carries a digest of the
note. Where the two do not match, a checkpoint is an older copy of itself.

Only a checkpoint in a folder of this machine can be looked at; other stores keep what they took.
"""

from __future__ import annotations

import hashlib
import re
from contextlib import suppress
from pathlib import Path

from .catalogue import sync

_SCHEME = re.compile(r"file:(?://)?(?=/)")


def settle_plan(checkpoint: str | None, batch: int) -> str:
    """Have the plan of a micro-batch on the disk; its digest, or "" where it cannot be seen."""
    if checkpoint is None:
        return ""
    folder = Path(_SCHEME.sub("", checkpoint, count=1))
    note = folder / "offsets" / str(batch)
    try:
        content = note.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return ""  # It is elsewhere: on HDFS, in a bucket.
    sync(note)
    sync(note.parent)
    if batch == 0:  # The rest is as old as the checkpoint.
        metadata = folder / "metadata"
        if metadata.exists():
            sync(metadata)
        sync(folder)
        for place in folder.absolute().parents:
            with suppress(OSError):  # One may make folders where one may not list them.
                sync(place)
    return hashlib.sha256(content).hexdigest()[:32]
