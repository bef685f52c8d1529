"""Small scripts that stand in for a program that Spark starts, kept in the user's cache."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping

from ..errors import ConfigError

_NAME_CHARS_MAX = 200


def cache_directory(env: Mapping[str, str]) -> str:
    """Where they are: SKYLARK_CACHE_DIR, or a directory of ours in the user's cache."""
    own = env.get("SKYLARK_CACHE_DIR")
    if own:
        return own
    return os.path.join(env.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "skylark")


def name_of(program: str) -> str:
    """A file name for a path: environments share the cache, so that each has its own script."""
    return re.sub(r"[^A-Za-z0-9]+", "-", program).strip("-")[-_NAME_CHARS_MAX:]


def write_script(text: str, path: str) -> None:
    """Have a script at a place where only its owner can change it; raises ConfigError."""
    try:
        _write_script(text, path)
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written: {error.strerror or error}; set SKYLARK_CACHE_DIR to a "
            "directory of yours"
        ) from error


def _write_script(text: str, path: str) -> None:
    directory = os.path.dirname(path)
    os.makedirs(directory, mode=0o700, exist_ok=True)
    for place in (os.path.dirname(directory), directory):
        if os.stat(place).st_uid != os.getuid():
            # What lies there would be run as us.
            raise ConfigError(
                f"{place} belongs to another user; set SKYLARK_CACHE_DIR to a directory of yours"
            )
    if _is_written(path, text):
        return
    # Several programs may start at once: each finds a whole script, or writes one.
    handle, draft = tempfile.mkstemp(dir=directory)
    with os.fdopen(handle, "w", encoding="utf-8", errors="surrogateescape") as opened:
        opened.write(text)
        os.fchmod(opened.fileno(), 0o700)
    os.replace(draft, path)
    if not os.access(path, os.X_OK):
        raise ConfigError(
            f"nothing in {directory} can be run; set SKYLARK_CACHE_DIR to a directory that is not "
            "mounted noexec"
        )


def _is_written(path: str, text: str) -> bool:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as opened:
            return opened.read() == text and os.access(path, os.X_OK)
    except FileNotFoundError:
        return False
