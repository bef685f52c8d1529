"""Bean: getX, isX and setX for a table of settings, as Java programs and frameworks use them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar


class Bean:
    """Settings with getters and setters; a name that is not in the table is an error."""

    SETTINGS: ClassVar[dict[str, Any]] = {}  # Name in Java, default.

    def __init__(self) -> None:
        self._values: dict[str, Any] = {
            name: default
            for kind in reversed(type(self).__mro__)
            for name, default in vars(kind).get("SETTINGS", {}).items()
        }

    def __getattr__(self, name: str) -> Callable[..., Any]:
        # Only what no class defines comes here.
        values = self.__dict__.get("_values", {})
        for start in ("set", "get", "is"):
            setting = name[len(start) : len(start) + 1].lower() + name[len(start) + 1 :]
            if name.startswith(start) and setting in values:
                if start == "set":
                    return lambda value: values.__setitem__(setting, value)
                return lambda: values[setting]
        raise AttributeError(
            f"{type(self).__name__} has no {name}; its settings are {', '.join(sorted(values))}"
        )

    def __dir__(self) -> list[str]:
        names = [name[:1].upper() + name[1:] for name in self._values]
        return sorted(
            [*super().__dir__(), *("set" + n for n in names), *("get" + n for n in names)]
        )
