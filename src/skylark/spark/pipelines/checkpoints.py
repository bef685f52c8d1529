"""Checkpoint: the folder of a pipeline's progress, held by one run, and of one pipeline for ever.

    <checkpoint>/pipeline.json          whose it is: the name, and the topics that it reads
    <checkpoint>/pipeline.lock          held by the run while it lives
    <checkpoint>/<source>.history.json  what an archive source began with, and its other files
    <checkpoint>/<sink>/                Spark's own: offsets, commits, state

Where the folder has a scheme (hdfs:, s3a:, also file:), and so is Spark's to find, the first three
are kept in the run directory, and the lock holds for this machine only.

What sources have noted counts once pipeline.json is there, which is on the disk before a query
starts. A start that was refused or killed before that leaves notes that no query has read by, and
the next one takes none of them.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from ...errors import ConfigError, StoreUnreadable
from ..catalogue import write_whole
from . import history
from .locks import Lock
from .paths import has_scheme
from .spec import Spec
from .state import RunDirectory


def notes_folder(spec: Spec, directory: RunDirectory) -> Path:
    """Where our own files about a checkpoint are."""
    if not has_scheme(spec.checkpoint):
        return Path(spec.checkpoint)
    name = hashlib.sha256(spec.checkpoint.encode()).hexdigest()[:16]
    return directory.root / "checkpoints" / name


class Checkpoint:
    """A checkpoint folder that this process holds."""

    def __init__(self, folder: Path, lock: Lock) -> None:
        self.folder = folder
        self.lock = lock

    @classmethod
    def take(cls, spec: Spec, directory: RunDirectory) -> Checkpoint:
        """Hold the folder; raises ConfigError where it is held, or is another pipeline's."""
        folder = notes_folder(spec, directory)
        check_owner(spec, folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock = Lock.take(folder / "pipeline.lock", f"checkpoint {spec.checkpoint}")
        except OSError as error:
            spec.refuse("checkpoint", f"{folder} cannot be used: {_problem(error)}")
        try:
            check_owner(spec, folder)  # Another run may have come in between.
            _forget_unfinished(spec, folder)
        except BaseException:
            lock.release()
            raise
        return cls(folder, lock)

    def claim(self, spec: Spec) -> None:
        """Note whose it is, before its first query starts; until then nothing here counts."""
        write_whole(self.folder / "pipeline.json", json.dumps(_identity(spec)).encode())

    def release(self) -> None:
        """Let another run have it."""
        self.lock.release()


def check_owner(spec: Spec, folder: Path) -> None:
    """Refuse a folder that belongs to another pipeline, or to other topics."""
    path = folder / "pipeline.json"
    try:
        found = json.loads(path.read_bytes())
        name, topics = str(found["pipeline"]), {str(topic) for topic in found["topics"]}
    except FileNotFoundError:
        return
    except NotADirectoryError:
        spec.refuse("checkpoint", f"{folder} is a file, or lies below one; name a folder")
    except PermissionError as error:
        spec.refuse("checkpoint", f"{folder} cannot be used: {_problem(error)}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreUnreadable(str(path), f"is no note of a pipeline: {error}") from error
    if name != spec.name:
        raise ConfigError(
            f"checkpoint {spec.checkpoint} belongs to the pipeline {name}; give {spec.name} a "
            "folder of its own"
        )
    gone = sorted(topics - set(_identity(spec)["topics"]))
    if gone:
        raise ConfigError(
            f"checkpoint {spec.checkpoint} has come so far with topic {', '.join(gone)}, which the "
            "pipeline does not read any more; start with a new checkpoint"
        )


def is_claimed(folder: Path) -> bool:
    """Whether queries may have begun with it."""
    return (folder / "pipeline.json").exists()


def _forget_unfinished(spec: Spec, folder: Path) -> None:
    """Remove what a start has noted that was refused: no query has read by it."""
    if not is_claimed(folder):
        for source in spec.sources:
            history.forget(source, folder)


def _problem(error: OSError) -> str:
    return os.strerror(error.errno) if error.errno else str(error)


def _identity(spec: Spec) -> dict[str, Any]:
    topics = {topic for source in spec.sources if source.is_stream for topic in source.topics}
    return {"pipeline": spec.name, "topics": sorted(topics)}
