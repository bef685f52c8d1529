"""Modules: what lies beside a pipeline file, and what it imports from there.

A module beside the file imports its neighbours by their plain names, as anywhere in Python. Two
things are different here:

    workers do not have them    so whatever was loaded from below the folder travels by value, or,
                                where something cannot be pickled, as files
    pipelines share a process   so a name that two folders have is set aside for its own pipeline
                                while modules of the other one are looked for

What is installed below the folder (a virtual environment, packages of its own) stays what it is:
workers have such things. So does what they get by --py-files.
"""

from __future__ import annotations

import functools
import io
import os
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from ...errors import ConfigError

OWN_PREFIX = "skylark_pipeline_"  # Of the names that a pipeline's own modules are loaded under.
_INSTALLED = frozenset({"site-packages", "dist-packages"})
_NOBODYS = frozenset({"__main__", "py4j", "pyspark", __name__.partition(".")[0]})
_STANDARD = Path(sysconfig.get_path("stdlib"))

_Cached = type(functools.cache(len))

# What was loaded from below each folder, also while it is set aside; a module has one folder.
_loaded: dict[Path, dict[str, ModuleType]] = {}
# Whose file the workers of a session have under a name, where it was sent from here.
_sent: dict[tuple[str, str], Path] = {}


class _Travelling(ModuleType):
    """A module that is pickled empty and then filled, so that modules may refer to each other."""

    def __reduce__(self) -> tuple[type[ModuleType], tuple[str], dict[str, Any]]:
        contents = {
            name: one
            for name, one in vars(self).items()
            if name != "__builtins__" and not _is_of_the_driver(one)
        }
        return ModuleType, (self.__name__,), contents


@contextmanager
def beside(folder: Path) -> Iterator[None]:
    """Let what is imported meanwhile find what lies in a folder, before others of its name."""
    folder = folder.absolute()
    _look_in(folder)
    try:
        yield
    finally:  # Also of a module that failed: what it had imported is not another pipeline's.
        _claim(folder)


def send(folder: Path) -> None:
    """Let all that was loaded from below a folder reach the workers: whole, or else as files."""
    folder = folder.absolute()
    rest = []
    for name, module in _loaded.get(folder, {}).items():
        if sys.modules.get(name) is not module or module.__name__ != name:
            continue
        if _is_given(name, folder):
            _leave_by_name(module)
        else:
            rest.append(module)
            send_by_value(module)
    if not _are_whole(rest):
        for module in rest:  # All of them, as they import each other.
            _leave_by_name(module)
        _send_as_files(folder, sorted({_first(module.__name__) for module in rest}))


def send_by_value(module: ModuleType) -> None:
    """Let a module, and all that has been loaded below it, travel to the workers whole."""
    from pyspark.cloudpickle import CloudPickler, register_pickle_by_value

    CloudPickler.dispatch_table[_Cached] = _reduced
    register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    below = f"{module.__name__}."
    for name, one in list(sys.modules.items()):
        if type(one) is ModuleType and f"{name}.".startswith(below):
            one.__class__ = _Travelling


def _leave_by_name(module: ModuleType) -> None:
    from pyspark import cloudpickle

    if module.__name__ in cloudpickle.list_registry_pickle_by_value():  # type: ignore[no-untyped-call]
        cloudpickle.unregister_pickle_by_value(module)  # type: ignore[no-untyped-call]
    if type(module) is _Travelling:
        module.__class__ = ModuleType  # type: ignore[assignment]


def _reduced(cached: Any) -> Any:
    """A function with a cache; pickle knows its name alone, which workers cannot find.

    Of a module that travels it goes itself, and begins with an empty cache.
    """
    from pyspark import cloudpickle

    parts = str(cached.__module__).split(".")
    names = {".".join(parts[:count]) for count in range(1, len(parts) + 1)}
    if names.isdisjoint(cloudpickle.list_registry_pickle_by_value()):  # type: ignore[no-untyped-call]
        return cached.__reduce__()
    return _cached, (cached.__wrapped__, cached.cache_parameters())


def _cached(function: Callable[..., Any], parameters: dict[str, Any]) -> Any:
    return functools.lru_cache(**parameters)(function)


def _are_whole(modules: Sequence[ModuleType]) -> bool:
    """Whether modules can be pickled; one that holds a lock or a connection cannot.

    What is the driver's does not count: nothing that a worker does has use for it, and a worker
    that imported the module could not make it.
    """
    from pyspark.cloudpickle import CloudPickler

    class Pickler(CloudPickler):
        def reducer_override(self, one: Any) -> Any:
            if _is_of_the_driver(one):
                return str, ()
            return super().reducer_override(one)  # type: ignore[no-untyped-call]

    try:
        Pickler(io.BytesIO()).dump(modules)  # type: ignore[no-untyped-call]
    except Exception:  # Whatever their contents say to that: it is an answer.
        return False
    return True


def _is_of_the_driver(one: object) -> bool:
    from pyspark import SparkContext
    from pyspark.sql import Column, DataFrame, SparkSession

    # By its type: a stand-in may run something when it is asked for its class.
    return issubclass(type(one), SparkContext | SparkSession | DataFrame | Column)


def _is_given(name: str, folder: Path) -> bool:
    """Whether workers have a module of this name, from --py-files or from this folder."""
    from pyspark import SparkContext, SparkFiles

    context = SparkContext._active_spark_context
    if context is None:
        return False
    root = SparkFiles.getRootDirectory()
    if _sent.get((root, _first(name)), folder) != folder:
        return False
    places = [root, *(os.path.join(root, one) for one in context._python_includes or ())]
    return PathFinder.find_spec(_first(name), places) is not None


def _send_as_files(folder: Path, names: Sequence[str]) -> None:
    """Let workers import what lies in a folder by its name; raises ConfigError."""
    from pyspark import SparkContext, SparkFiles

    context = SparkContext._active_spark_context
    if context is None:  # Spark has not started; they are looked at again when it has.
        return
    for name in names:
        file = _place(name, folder)
        if file.is_dir():
            packed = tempfile.mkdtemp(prefix="modules-", dir=context._temp_dir)
            base = os.path.join(packed, name)
            file = Path(shutil.make_archive(base, "zip", file.parent, file.name))
        root = SparkFiles.getRootDirectory()
        if os.path.exists(os.path.join(root, file.name)):  # Spark would fail all jobs from then on.
            raise ConfigError(
                f"{file.name} holds what cannot be pickled, such as a lock, and Spark's workers "
                "have another file of its name; rename it, or make that when it is first used"
            )
        context.addPyFile(str(file))
        _sent[root, name] = folder


def _place(name: str, folder: Path) -> Path:
    """The file of a module, or the folder of a package, which may lie deeper than beside us."""
    module = sys.modules[name]
    if file := vars(module).get("__file__"):
        return Path(file).parent if Path(file).name == "__init__.py" else Path(file)
    parts = [Path(one) for one in module.__path__]
    return next((one for one in parts if one.is_relative_to(folder)), parts[0])


def _first(name: str) -> str:
    return name.partition(".")[0]


def send_again(folder: Path) -> bool:
    """The same with what has been imported since, where anything was loaded from there at all.

    Whether there is more than before: what has been made with it cannot be used by workers.
    """
    loaded = _loaded.get(folder.absolute())
    if loaded is None:
        return False
    before = len(loaded)
    with beside(folder):
        pass
    send(folder)
    return len(loaded) > before


def _look_in(folder: Path) -> None:
    if str(folder) in sys.path:
        sys.path.remove(str(folder))
    sys.path.insert(0, str(folder))
    for owner, modules in _loaded.items():
        for name, module in modules.items():
            is_there = sys.modules.get(name) is module
            if owner != folder and is_there and _has(folder, _first(name)):
                del sys.modules[name]
    for name, module in _loaded.setdefault(folder, {}).items():
        sys.modules.setdefault(name, module)


def _has(folder: Path, name: str) -> bool:
    return (folder / f"{name}.py").is_file() or (folder / name).is_dir()


def _claim(folder: Path) -> None:
    """Note what has been loaded from below a folder."""
    others = {
        id(module)
        for owner, modules in _loaded.items()
        for module in modules.values()
        if owner != folder
    }
    for name, module in list(sys.modules.items()):
        if id(module) not in others and _is_below(folder, name, module):
            _loaded[folder][name] = module


def _is_below(folder: Path, name: str, module: object) -> bool:
    if not isinstance(module, ModuleType) or _first(name) in _NOBODYS:
        return False
    if name.startswith(OWN_PREFIX):  # These travel by value in any case.
        return False
    # As it is written there: asking a module for what it lacks may run something.
    file = vars(module).get("__file__")
    places = [file] if file else list(vars(module).get("__path__") or ())
    return any(isinstance(place, str) and _is_own(folder, Path(place)) for place in places)


def _is_own(folder: Path, place: Path) -> bool:
    """Whether a file lies below a folder, and is not installed there."""
    if not place.is_relative_to(folder):
        return False
    if place.is_relative_to(_STANDARD) and not folder.is_relative_to(_STANDARD):
        return False
    inner = place.relative_to(folder).parts
    if _INSTALLED.intersection(inner):
        return False
    return not any(_is_environment(folder.joinpath(*inner[:n])) for n in range(1, len(inner)))


@functools.cache
def _is_environment(folder: Path) -> bool:
    return (folder / "pyvenv.cfg").is_file()
