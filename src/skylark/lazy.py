"""front_door: a folder's public names, each imported when it is first asked for.

A folder's `__init__.py` lists the names that other folders use. Importing them all at once would
make a name server pay for the broker's records and a producer for the admin's tables; a good part
of a server's start is the making of classes it never uses. So the list is kept here, and for type
checkers under TYPE_CHECKING, where they see the real imports; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def front_door(
    namespace: dict[str, Any], exports: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Make the `__getattr__` and `__dir__` of a package from its exports, module to names."""
    package = namespace["__name__"]
    homes = {name: module for module, names in exports.items() for name in names}

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f"{package}.{homes[name]}"), name)
        namespace[name] = value
        return value

    def names() -> list[str]:
        return sorted({*namespace, *homes})

    return get, names
