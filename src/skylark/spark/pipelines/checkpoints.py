"""Checkpoint: the folder of a pipeline's progress, held by one run, and of one pipeline for ever.

    <checkpoint>/pipeline.json          whose it is: the name, and the topics that it reads
    <checkpoint>/pipeline.lock          held by the run while it lives
    <checkpoint>/<source>.history.json  where the archive ended when an archive source began
    <checkpoint>/<sink>/                Spark's own: offsets, commits, state

Where the folder is no directory of this machine (hdfs://, s3a://), the first three are kept in the
run directory, and the lock holds for this machine only.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from ...errors import ConfigError, StoreUnreadable
from .locks import Lock
from .spec import Spec
from .state import RunDirectory


def notes_folder(spec: Spec, directory: RunDirectory) -> Path:
    """Where our own files about a checkpoint are."""
    if "://" not in spec.checkpoint:
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
        _write(self.folder / "pipeline.json", _identity(spec))

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
    if is_claimed(folder):
        return
    for source in spec.sources:
        (folder / f"{source.name}.history.json").unlink(missing_ok=True)


def _problem(error: OSError) -> str:
    return os.strerror(error.errno) if error.errno else str(error)


def _identity(spec: Spec) -> dict[str, Any]:
    topics = {topic for source in spec.sources if source.is_stream for topic in source.topics}
    return {"pipeline": spec.name, "topics": sorted(topics)}


def _write(path: Path, value: dict[str, Any]) -> None:
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps(value), encoding="utf-8")
    draft.replace(path)
