"""What commands that run Spark are given for it, said once: flags of every such command."""

from __future__ import annotations

import functools
import glob
import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, Final, Self

import typer

from ..errors import ConfigError

# What comes to a command as one: the fields of Flags that it shares with all others.
_SHARED: Mapping[str, Any] = {
    "master": Annotated[
        str | None,
        typer.Option(
            "--master",
            metavar="URL",
            help="Spark's master, such as spark://host:7077; two cores of this machine if not set.",
        ),
    ],
    "conf": Annotated[
        list[str] | None,
        typer.Option(
            "--conf", metavar="KEY=VALUE", help="A setting of Spark; once for each setting."
        ),
    ],
    "packages": Annotated[
        str | None,
        typer.Option(
            "--packages",
            metavar="G:A:V,…",
            help="Java packages that Spark fetches, as group:artifact:version.",
        ),
    ],
    "jars": Annotated[
        str | None, typer.Option("--jars", metavar="FILE,…", help="Jar files for Spark.")
    ],
    "py_files": Annotated[
        str | None,
        typer.Option(
            "--py-files", metavar="FILE,…", help="Python files for Spark's workers: .py, .zip."
        ),
    ],
}
BodyMode = Annotated[
    str | None,
    typer.Option(
        "--body-mode",
        metavar="MODE",
        help="What becomes of a body that does not decompress: failfast ends the command (as if "
        "not set), permissive gives null, dropmalformed no row.",
    ),
]
Verbose = Annotated[
    bool, typer.Option("--verbose", help="Show what Spark itself says; else a log file has it.")
]


def _absolute(option: str, text: str | None) -> str | None:
    """Files of this machine by their whole paths; Spark would pass over one that is missing."""
    from ..spark.pipelines.paths import has_scheme

    if text is None:
        return None
    found = []
    for name in filter(None, map(str.strip, text.split(","))):
        if not has_scheme(name):
            path = os.path.abspath(os.path.expanduser(name))
            if not os.path.exists(path) and not glob.glob(path):
                raise ConfigError(f"{option} {name}: there is no such file")
            name = path
        found.append(name)
    return ",".join(found)


@dataclass(frozen=True, slots=True)
class Flags:
    """What goes to Spark as it is; kept so that `resume` does the same, from whatever folder."""

    master: str | None = None
    conf: list[str] | None = None
    packages: str | None = None
    jars: str | None = None
    py_files: str | None = None
    once: bool = False
    namesrv: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "jars", _absolute("--jars", self.jars))
        object.__setattr__(self, "py_files", _absolute("--py-files", self.py_files))
        self.settings()  # Wrong use is said before servers are asked and Spark starts.

    @classmethod
    def kept(cls, values: Mapping[str, Any]) -> Self:
        """Those of an earlier run, without what a newer version has added; raises TypeError."""
        known = {one.name: values[one.name] for one in fields(cls) if one.name in values}
        for name, value in known.items():  # Not quoted: they may hold secrets.
            kind = {"conf": list, "once": bool}.get(name, str)
            if value is not None and not isinstance(value, kind):
                raise TypeError(f"its flag {name} is damaged")
        return cls(**known)

    def settings(self) -> dict[str, str]:
        """As settings of Spark."""
        found = {}
        for key, value in (
            ("spark.jars.packages", self.packages),
            ("spark.jars", self.jars),
            ("spark.submit.pyFiles", self.py_files),
        ):
            if value is not None:
                found[key] = value
        for one in self.conf or ():
            name, equals, value = one.partition("=")
            if not equals or not name:
                raise ConfigError(f"--conf {one!r}: KEY=VALUE is needed")
            found[name] = value
        return found


NO_FLAGS: Final = Flags()


def with_spark_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command Spark's flags, in the place of its parameter `flags`.

    Its signature is changed, because that is what typer makes the command line from.
    """
    own = inspect.signature(command, eval_str=True)
    shared = [
        inspect.Parameter(
            name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None, annotation=kind
        )
        for name, kind in _SHARED.items()
    ]
    parameters: list[inspect.Parameter] = []
    for parameter in own.parameters.values():
        parameters += shared if parameter.name == "flags" else [parameter]

    @functools.wraps(command)
    def call(*words: Any, **given: Any) -> None:
        flags = Flags(**{name: given.pop(name) for name in _SHARED if name in given})
        command(*words, flags=flags, **given)

    call.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    return call


def body_options(mode: str | None) -> dict[str, str]:
    """The option of --body-mode, checked before Spark starts; raises ConfigError."""
    from ..spark.options import read_options

    if mode is None:
        return {}
    found = {"bodyMode": mode}
    read_options({"namesrv": "localhost:9876", "topic": "any", **found}, is_stream=False)
    return found
