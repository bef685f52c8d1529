"""`mqshutdown namesrv|broker`: ask this user's running servers to stop, as RocketMQ's script does.

A server is found by its command line in /proc: the program mqnamesrv or mqbroker, `skylark namesrv`
or `skylark broker`, or the same by `python -m`.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Sequence

from . import exits

NONE_RUNNING = 255  # RocketMQ's script ends with -1, which a shell sees as 255.

_ROLES = {"namesrv": "mqnamesrv", "broker": "mqbroker"}
# Options of the interpreter that take the next argument as their value.
_WITH_VALUE = {"-W", "-X", "--check-hash-based-pycs"}


def main(argv: Sequence[str] | None = None, *, proc: str = "/proc") -> int:
    """Send SIGTERM to the servers of a role; returns the exit code."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    usage = f"Usage: mqshutdown {' | '.join(_ROLES)}"
    if arguments in (["-h"], ["--help"]):
        print(usage)
        return exits.DONE
    if len(arguments) != 1 or arguments[0] not in _ROLES:
        print(usage, file=sys.stderr)
        return exits.WRONG_USE
    role = arguments[0]
    name = _ROLES[role]
    stopped = 0
    for pid in servers(role, proc):
        print(f"The {name}({pid}) is running...")
        if _terminate(pid, role, proc):
            stopped += 1
            print(f"Send shutdown request to {name}({pid}) OK")
    if not stopped:
        print(f"No {name} running.")
        return NONE_RUNNING
    return exits.DONE


def servers(role: str, proc: str = "/proc") -> Iterator[int]:
    """Yield the process ids of this user's servers of a role."""
    for entry in sorted(filter(str.isdecimal, os.listdir(proc)), key=int):
        pid = int(entry)
        if pid != os.getpid() and is_server(_command_line(pid, proc), role):
            yield pid


def is_server(command_line: Sequence[str], role: str) -> bool:
    """Say whether a command line runs a server of a role."""
    words = list(command_line)
    if words and os.path.basename(words[0]).startswith(("python", "pypy")):
        words = _without_interpreter(words[1:])
    if not words:
        return False
    program = os.path.basename(words[0])
    if program in (_ROLES[role], f"skylark.cli.{_ROLES[role]}"):
        return True
    return program in ("skylark", "skylark.cli", "skylark.cli.main") and words[1:2] == [role]


def _without_interpreter(words: list[str]) -> list[str]:
    """Drop the interpreter's own options; a module keeps its name in the place of the script."""
    while words and words[0].startswith("-"):
        option = words.pop(0)
        if option == "-m":
            return words
        if option == "-c":
            return []
        if option in _WITH_VALUE and words:
            words.pop(0)
    return words


def _command_line(pid: int, proc: str) -> list[str]:
    try:
        if os.stat(f"{proc}/{pid}").st_uid != os.getuid():
            return []
        with open(f"{proc}/{pid}/cmdline", "rb") as opened:
            raw = opened.read(65_536)
    except OSError:
        return []  # It has ended, or is not ours to see.
    return [word.decode("utf-8", "replace") for word in raw.rstrip(b"\0").split(b"\0")]


def _terminate(pid: int, role: str, proc: str) -> bool:
    # The handle keeps naming one process even when its number is given to another, so that looking
    # at the command line once more makes sure of whom the signal reaches.
    try:
        handle = os.pidfd_open(pid)
    except (ProcessLookupError, PermissionError):
        return False
    try:
        if not is_server(_command_line(pid, proc), role):
            return False
        signal.pidfd_send_signal(handle, signal.SIGTERM)
    except (ProcessLookupError, PermissionError):
        return False
    finally:
        os.close(handle)
    return True


if __name__ == "__main__":
    raise SystemExit(main())
