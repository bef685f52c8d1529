"""Restarter: restarts a broker process in the way that its operator uses.

    skylark cluster restart --all --command 'ssh {host} systemctl restart skylark-{name}-{id}'

Fields: name, id, address, host, port, role, cluster. The command is split into words before they
are filled in, and no shell sees it, so that no name can become a command; with a shell, values are
quoted. Without a command the operator is told what to restart.
"""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import string
import sys
from typing import Final

from ..admin import MemberStatus
from ..errors import ClientError, ConfigError
from .progress import Progress

FIELDS: Final = ("name", "id", "address", "host", "port", "role", "cluster")


class Restarter:
    """Restarts one process after another; a Restart of AdminClient.rolling_restart."""

    def __init__(
        self,
        progress: Progress,
        *,
        command: str | None,
        uses_shell: bool = False,
        timeout_s: float = 300.0,
        clusters: dict[str, str] | None = None,
    ) -> None:
        """Raises ConfigError for a command that cannot be filled in."""
        self._progress = progress
        self._command = command
        self._uses_shell = uses_shell
        self._timeout_s = timeout_s
        self.clusters = {} if clusters is None else clusters
        if command is not None:
            self._words = _checked(command)

    async def __call__(self, member: MemberStatus) -> None:
        """Restart it, or say that it must be; raises ClientError."""
        where = f"{member.broker} (id {member.broker_id}) at {member.address}"
        if self._command is None:
            self._progress.say(f"restart {where} now; waiting until it is back")
            return
        values = self._values(member)
        if self._uses_shell:
            quoted = {name: shlex.quote(value) for name, value in values.items()}
            line = self._command.format_map(quoted)
            process = await asyncio.create_subprocess_shell(
                line, stdin=asyncio.subprocess.DEVNULL, stdout=sys.stderr, stderr=sys.stderr
            )
        else:
            words = [word.format_map(values) for word in self._words]
            line = shlex.join(words)
            try:
                process = await asyncio.create_subprocess_exec(
                    *words, stdin=asyncio.subprocess.DEVNULL, stdout=sys.stderr, stderr=sys.stderr
                )
            except OSError as error:
                raise ConfigError(
                    f"{words[0]} cannot be run: {error.strerror}; correct --command"
                ) from None
        try:
            async with asyncio.timeout(self._timeout_s):
                code = await process.wait()
        except TimeoutError:
            problem = f"has not ended after {self._timeout_s:g} s"
        else:
            if code == 0:
                return
            problem = f"ended with exit code {code}"
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        raise ClientError(
            f"`{line}` {problem}",
            hint=f"see whether {where} runs, then repeat this",
            broker=member.broker,
        )

    def _values(self, member: MemberStatus) -> dict[str, str]:
        host, _, port = member.address.rpartition(":")
        return {
            "name": member.broker,
            "id": str(member.broker_id),
            "address": member.address,
            "host": host,
            "port": port,
            "role": member.role,
            "cluster": self.clusters.get(member.broker, ""),
        }


def _checked(command: str) -> list[str]:
    try:
        words = shlex.split(command)
        fields = [name for _, name, _, _ in string.Formatter().parse(command) if name is not None]
    except ValueError as error:
        raise ConfigError(f"--command {command[:64]!r}: {error}; correct it") from None
    if not words:
        raise ConfigError("--command is empty; leave it out to restart by hand")
    unknown = [name for name in fields if name not in FIELDS]
    if unknown:
        raise ConfigError(
            f"--command has a field {{{unknown[0][:32]}}}; there are "
            f"{', '.join(f'{{{name}}}' for name in FIELDS)}"
        )
    return words
