"""Paths: which are files of this machine, and which are for Spark's file systems to find."""

from __future__ import annotations

import re

# At least two letters, as a scheme of Hadoop's has: C: is none.
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")


def has_scheme(path: str) -> bool:
    """Whether a path names its file system, as s3a://bucket/x, dbfs:/x and file:/x do."""
    return _SCHEME.match(path) is not None
