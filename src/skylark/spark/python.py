"""Python for Spark's own processes: the one that runs here, without Spark's archives on its path.

Spark starts a Python process for each kind of question it has for a source or sink, seven of them
before the first row, and puts `pyspark.zip` first on the path of each. Python compiles what it
imports from an archive anew every time, which takes each of them more than half a second. The
package pyspark that was installed with pip is the same code, compiled once. So the processes of
this machine get a small script for a Python, which takes everything below the package from
PYTHONPATH and leaves the rest as it is.

Executors of a cluster keep the Python that is named for them: a path of this machine means
nothing there.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import shlex
import sys
from collections.abc import Mapping

from ..errors import ConfigError
from .scripts import cache_directory, name_of, write_script

logger = logging.getLogger(__name__)

_SCRIPT = """\
#!/bin/sh
# Made by skylark: starts Python for Spark without the archives of the pyspark that it has anyway.
kept=
rest=$PYTHONPATH:
while [ -n "$rest" ]; do
  part=${{rest%%:*}}
  rest=${{rest#*:}}
  case $part in
    "" | {package}/*) ;;
    *) kept=$kept${{kept:+:}}$part ;;
  esac
done
PYTHONPATH=$kept exec {python} "$@"
"""


def python_environment(env: Mapping[str, str] | None = None, *, master: str) -> dict[str, str]:
    """Return the variables that name Python for Spark; what the user has set stays as it is."""
    environment = os.environ if env is None else env
    script = os.path.join(cache_directory(environment), "python", name_of(sys.executable), "python")
    package = _installed_package(environment)
    python = sys.executable
    if master.startswith("local") and os.name == "posix" and package is not None:
        text = _SCRIPT.format(package=shlex.quote(package), python=shlex.quote(sys.executable))
        try:
            write_script(text, script)
            python = script
        except ConfigError as error:  # It only saves time.
            logger.info("path=%s no script for Spark's Python: %s", script, error)
    # An earlier session, with another master, may have named the script.
    given = {name: environment.get(name) for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")}
    return {name: old if old and old != script else python for name, old in given.items()}


def _installed_package(environment: Mapping[str, str]) -> str | None:
    """The folder of pyspark that Python imports anyway, if that is the Spark that is started."""
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None or not os.path.isfile(found.origin):
        return None
    package = os.path.dirname(os.path.abspath(found.origin))
    home = environment.get("SPARK_HOME")
    if home and os.path.realpath(home) != os.path.realpath(package):
        return None  # A Spark of its own, whose Python need not be the same.
    return package
