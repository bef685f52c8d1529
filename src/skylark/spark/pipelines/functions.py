"""Functions: Python that a pipeline file names, found and called.

A module is looked for beside the pipeline file first, and only when somebody runs that file. Such a
module is loaded under a name of its own for its path, so that pipelines of one process do not share
modules that are called the same, nor take one of Python's. It travels to Spark's workers by value,
since they would not find it by name, and so does what it imports from there (modules.py).
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from traceback import extract_tb
from types import ModuleType
from typing import Any

from ...errors import SkylarkError
from . import causes, modules
from .document import Place


def find(function: Callable[..., Any] | str, folder: Path, place: Place) -> Callable[..., Any]:
    """The function itself; module:function is imported."""
    if callable(function):
        modules.send_again(folder)
        return function
    module_name, _, name = function.partition(":")
    own = _own_name(folder / module_name.partition(".")[0])
    try:
        with modules.beside(folder):
            module = _beside(module_name, folder, own) or importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # Whatever the user's module does while it loads.
        problem = said(error).replace(own, module_name.partition(".")[0])
        place.refuse(f"module {module_name} cannot be imported: {problem}")
    modules.send(folder)
    found = getattr(module, name, None)
    if not callable(found):
        names = [n for n, one in vars(module).items() if callable(one) and not n.startswith("_")]
        place.refuse(
            f"module {module_name} has no function {name}; it has {', '.join(names[:20]) or 'none'}"
        )
    result: Callable[..., Any] = found
    return result


def _own_name(path: Path) -> str:
    """What a module is called here: by its place, whatever else is called like it."""
    digest = hashlib.sha256(str(path.absolute()).encode()).hexdigest()[:12]
    return f"{modules.OWN_PREFIX}{path.stem}_{digest}"


def _beside(module_name: str, folder: Path, own: str) -> ModuleType | None:
    """The module in a folder, loaded once; None where there is none."""
    first, _, inner = module_name.partition(".")
    described = _described(own, folder / first, inner)
    if described is None:
        return None
    if own not in sys.modules:
        root = importlib.util.module_from_spec(described)
        sys.modules[own] = root
        try:
            if described.loader is not None:
                described.loader.exec_module(root)
        except BaseException:
            del sys.modules[own]
            raise
    found = importlib.import_module(f"{own}.{inner}") if inner else sys.modules[own]
    modules.send_by_value(sys.modules[own])  # And with it all that is below.
    return found


def _described(own: str, path: Path, inner: str) -> ModuleSpec | None:
    """How the module or package at a path is loaded; Python looks in the same order."""
    for file in (path / "__init__.py", path.with_name(f"{path.name}.py")):
        if file.is_file():
            return importlib.util.spec_from_file_location(own, file)
    deeper = path.joinpath(*inner.split("."))
    if not inner or not (deeper.is_dir() or deeper.with_name(f"{deeper.name}.py").is_file()):
        return None
    folder = ModuleSpec(own, None, is_package=True)
    folder.submodule_search_locations = [str(path)]
    return folder


def load_file(path: Path) -> ModuleType:
    """Run a Python file as a module of its own; only ever one that the user has named."""
    name = _own_name(path)
    described = importlib.util.spec_from_file_location(name, path)
    place = Place(path.name, 1)
    if described is None or described.loader is None:
        place.refuse("is no Python file")
    module = importlib.util.module_from_spec(described)
    sys.modules[name] = module
    try:
        with modules.beside(path.parent):
            described.loader.exec_module(module)
    except SyntaxError as error:
        file = Path(error.filename or path).name  # Perhaps a module that it imports.
        Place(file, error.lineno or 1).refuse(f"this is not Python: {error.msg}")
    except SkylarkError:  # What it says to us is refused with its own place.
        raise
    except (Exception, SystemExit) as error:  # Whatever the user's file does.
        stack = extract_tb(error.__traceback__)
        lines = [one.lineno for one in stack if one.filename == described.origin]
        Place(path.name, (lines and lines[-1]) or 1).refuse(f"this fails: {said(error)}")
    return module


def said(error: BaseException) -> str:
    """What a function or file of the user's failed with, in one line."""
    name, text = type(error).__name__, causes.one_line(error)
    return name if text == name else f"{name}: {text}"


def inputs_of(function: Callable[..., Any], given: Sequence[str] | None, place: Place) -> list[str]:
    """The names that a function wants."""
    if given is not None:
        return list(given)
    names = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            place.refuse("the function takes anything; name its inputs, such as inputs: [orders]")
        if parameter.default is parameter.empty:
            names.append(parameter.name)
    return names


def call(
    function: Callable[..., Any],
    given: Sequence[str] | None,
    frames: Mapping[str, Any],
    spark: Any,
    place: Place,
) -> Any:
    """Call a step with the frames that it names; `spark` is the session."""
    known = {**frames, "spark": spark}
    names = inputs_of(function, given, place)
    for name in names:
        if name not in known:
            place.refuse(
                f"the function wants {name}, and there is no such source or step above; there are "
                f"{', '.join(frames)}"
            )
    if given is not None:
        return function(*(known[name] for name in names))
    kinds = inspect.signature(function).parameters
    by_name = [name for name in names if kinds[name].kind is inspect.Parameter.KEYWORD_ONLY]
    return function(
        *(known[name] for name in names if name not in by_name),
        **{name: known[name] for name in by_name},
    )
