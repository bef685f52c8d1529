"""The front doors: what type checkers see is what an import gives."""

import ast
import importlib
import pathlib

import pytest

SOURCE = pathlib.Path(__file__).parents[2] / "src" / "skylark"
DOORS = sorted(
    path
    for path in SOURCE.rglob("__init__.py")
    if "front_door(" in path.read_text(encoding="utf-8")
)


@pytest.mark.parametrize("path", DOORS, ids=lambda path: path.parent.name)
def test_a_lazy_front_door_gives_what_type_checkers_see(path: pathlib.Path) -> None:
    package = importlib.import_module(
        ".".join(("skylark", *path.parent.relative_to(SOURCE).parts)).rstrip(".")
    )
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level == 1:
            room = importlib.import_module(f"{package.__name__}.{node.module}")
            for alias in node.names:
                assert getattr(package, alias.name) is getattr(room, alias.name)
                assert alias.name in dir(package)


@pytest.mark.parametrize("path", DOORS, ids=lambda path: path.parent.name)
def test_a_misspelled_name_is_refused(path: pathlib.Path) -> None:
    package = importlib.import_module(
        ".".join(("skylark", *path.parent.relative_to(SOURCE).parts)).rstrip(".")
    )
    with pytest.raises(AttributeError, match="has no attribute 'Nonsense'"):
        package.Nonsense
