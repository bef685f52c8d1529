"""Pipeline: a pipeline in Python, and files of either kind.

    pipeline = Pipeline("orders", checkpoint="checkpoints/orders", trigger="availableNow")
    pipeline.source("orders", topic="OrderTopic", startingOffsets="earliest")

    @pipeline.step
    def paid(orders):                  # Its parameters are the names of sources and steps.
        return orders.where("tag = 'Paid'")

    pipeline.sink("out", topic="PaidTopic")

    with pipeline.running() as run:
        run.wait()

The words are those of a YAML file. `skylark pipeline run orders.py` takes the only Pipeline that
the file makes, so the file needs no last two lines.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ...errors import ConfigError
from . import functions, modules
from .document import TEXT_BYTES_MAX, Place, from_python, parse_yaml
from .parsing import parse
from .spec import Spec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from .runs import Run

_F = TypeVar("_F", bound=Callable[..., Any])
_OWN_FILE = __file__


class Pipeline:
    """A pipeline that a Python program puts together."""

    def __init__(
        self, name: str, *, folder: str | os.PathLike[str] | None = None, **keys: Any
    ) -> None:
        """Name it; further keys are those of a file: checkpoint, trigger, namesrv, group, settings.

        Relative paths begin at folder, or else where the program was started.
        """
        self._place = _caller()
        self._folder = None if folder is None else Path(folder)
        self._keys: dict[str, Any] = {"name": name, **keys}
        self._parts: dict[str, dict[str, tuple[Any, Place]]] = {
            "sources": {},
            "steps": {},
            "sinks": {},
        }

    def source(self, name: str, **keys: Any) -> Pipeline:
        """Add a source: topic=…, archive=… or format=…, and its options."""
        return self._add("sources", name, keys)

    def sql(self, name: str, query: str, **keys: Any) -> Pipeline:
        """Add a step that is a query."""
        return self._add("steps", name, {"sql": query, **keys})

    def step(self, function: _F) -> _F:
        """Add a function as a step of its name, a partial one as of the whole one; a decorator."""
        whole = _unwrapped(function)
        code = getattr(whole, "__code__", None)
        place = Place(Path(code.co_filename).name, code.co_firstlineno) if code else _caller()
        name = getattr(whole, "__name__", None) or type(whole).__name__
        self._add("steps", name, {"python": function}, place)
        return function

    def sink(self, name: str, *, takes: str | None = None, **keys: Any) -> Pipeline:
        """Add a sink: topic=…, format=… or python=function; takes is `from` in a file."""
        return self._add("sinks", name, keys if takes is None else {"from": takes, **keys})

    def _add(
        self, part: str, name: str, keys: Mapping[str, Any], place: Place | None = None
    ) -> Pipeline:
        place = place or _caller()
        if name in self._parts[part]:
            place.refuse(f"{part}.{name} is here twice")
        self._parts[part][name] = (keys, place)
        return self

    def spec(
        self,
        folder: Path | None = None,
        environment: Mapping[str, str] = os.environ,
        *,
        namesrv: str | None = None,
    ) -> Spec:
        """What it is; raises ConfigError with file and line. namesrv goes before its own."""
        root = from_python(self._keys, self._place)
        for part, entries in self._parts.items():
            if entries:
                inner = {
                    name: from_python(keys, Place(place.file, place.line, f"{part}.{name}"))
                    for name, (keys, place) in entries.items()
                }
                root.value[part] = type(root)(inner, self._place)
        where = self._folder or folder or Path.cwd()
        return parse(root, where, environment=environment, namesrv=namesrv)

    @contextmanager
    def running(self, spark: SparkSession | None = None, *, once: bool = False) -> Iterator[Run]:
        """Run it in this process; leaving stops it."""
        with running(self.spec(), spark, once=once) as run:
            yield run


@contextmanager
def running(
    pipeline: Spec | str | os.PathLike[str],
    spark: SparkSession | None = None,
    *,
    once: bool = False,
) -> Iterator[Run]:
    """Run a pipeline or the file of one in this process; leaving the block stops it."""
    from ..sessions import session
    from .runs import Run

    spec = pipeline if isinstance(pipeline, Spec) else load(pipeline)
    with Run(spec.once() if once else spec) as run:
        run.start(spark or session(f"skylark {spec.name}", settings=spec.settings))
        yield run


def load(
    path: str | os.PathLike[str],
    environment: Mapping[str, str] = os.environ,
    *,
    namesrv: str | None = None,
) -> Spec:
    """Read a pipeline from a YAML or Python file; raises ConfigError with file and line.

    namesrv goes before the file's, and not before that of a source or sink.
    """
    file = Path(path)
    if file.suffix not in (".yaml", ".yml", ".py"):
        raise ConfigError(f"{file}: a pipeline file ends with .yaml, .yml or .py")
    try:
        if file.stat().st_size > TEXT_BYTES_MAX:
            raise ConfigError(f"{file}: a pipeline file has at most {TEXT_BYTES_MAX} bytes")
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{file}: there is no such file") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: this is not UTF-8 text: {error.reason}") from None
    folder = file.parent.absolute()
    if file.suffix != ".py":
        root = parse_yaml(text, file.name, environment)
        return parse(root, folder, name=file.stem, environment=environment, namesrv=namesrv)
    module = functions.load_file(file)
    found = [one for one in vars(module).values() if isinstance(one, Pipeline)]
    found = list({id(one): one for one in found}.values())
    if len(found) != 1:
        count = "no Pipeline" if not found else f"{len(found)} Pipelines"
        raise ConfigError(f"{file}: the file makes {count}; exactly one is needed")
    modules.send_by_value(module)
    modules.send(folder)
    return found[0].spec(folder, environment, namesrv=namesrv)


def _caller() -> Place:
    """The line of the user's that called us."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename == _OWN_FILE:
        frame = frame.f_back
    return Place(Path(frame.f_code.co_filename).name, frame.f_lineno)


def _unwrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function itself, below what is already given to it."""
    while isinstance(function, partial):
        function = function.func
    return function
