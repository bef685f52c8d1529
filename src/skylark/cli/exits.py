"""Exit codes, and how a failure becomes one line and one of them.

0    done
1    failed
2    wrong use or configuration
3    the server cannot be reached
130  interrupted, 141 reader gone: as shells have it
"""

from __future__ import annotations

import errno
import re
import socket
import sys

from ..config.schema import safe_path, safe_text
from ..errors import (
    ConfigError,
    InvalidName,
    SkylarkError,
    StoreLocked,
    StoreUnreadable,
    TransportError,
)

DONE = 0
FAILED = 1
WRONG_USE = 2
NOT_REACHABLE = 3
INTERRUPTED = 130
READER_GONE = 141

_BOUND = re.compile(r"address \('(?P<host>[^']*)', (?P<port>\d+)")
_UNUSABLE_FILE = {
    errno.EEXIST,
    errno.EACCES,
    errno.EPERM,
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.EROFS,
    errno.ENAMETOOLONG,
    errno.ELOOP,
}


def complain(program: str, message: str) -> None:
    """Print one line to standard error."""
    print(f"{program}: {message}", file=sys.stderr, flush=True)


def failure(error: BaseException) -> tuple[str, int] | None:
    """Return the line and the exit code for an error that a user can act on, or None for a bug."""
    error = _innermost(error)
    if isinstance(error, (ConfigError, InvalidName, StoreUnreadable, StoreLocked)):
        return str(error), WRONG_USE
    if isinstance(error, TransportError):
        return f"{error}; is the server running, and the address right?", NOT_REACHABLE
    if isinstance(error, SkylarkError):
        return str(error), FAILED
    if isinstance(error, socket.gaierror):
        return f"the host name does not resolve: {error.strerror}; correct the address", WRONG_USE
    if isinstance(error, OSError):
        return _os_failure(error)
    return None


def _innermost(error: BaseException) -> BaseException:
    # A task group wraps even a single failure; the user's mistake is the one inside.
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def _os_failure(error: OSError) -> tuple[str, int]:
    text = error.strerror or str(error) or type(error).__name__
    bound = _BOUND.search(text)
    where = f"{bound['host']}:{bound['port']}" if bound else "the address"
    if error.errno == errno.EADDRINUSE:
        return (
            f"{where} is taken; stop the program that listens there, or choose a port with -p",
            WRONG_USE,
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{where} is not an address of this machine; correct listenHost", WRONG_USE
    if bound is not None:
        return (
            f"cannot listen on {where}: {safe_text(text)}; choose another port with -p",
            WRONG_USE,
        )
    if error.filename is not None and error.errno in _UNUSABLE_FILE:
        path = safe_path(str(error.filename))
        if error.errno == errno.EEXIST:
            return f"cannot use {path}: there is a file already; name another place", WRONG_USE
        return f"cannot use {path}: {text}; correct the path or its permissions", WRONG_USE
    return safe_text(str(error)), FAILED
