"""Body: what all typed bodies have in common."""

from __future__ import annotations

from typing import Any, Self

from .. import fastjson
from .members import Members


class Body:
    """A JSON body that reads and writes itself; a subclass says what its members are."""

    __slots__ = ()

    @classmethod
    def from_json(
        cls, data: bytes | bytearray | memoryview, *, size_max: int = fastjson.SIZE_MAX
    ) -> Self:
        """Read a body, or raise InvalidBody that says which member is wrong, and how."""
        return cls.from_members(Members.of(fastjson.loads(data, size_max=size_max), cls.__name__))

    def to_json(self, *, pretty: bool = False) -> bytes:
        """Write this body as Java does: compact for the wire, pretty for a config file."""
        return fastjson.dumps(self.to_members(), pretty=pretty)

    @classmethod
    def from_members(cls, members: Members) -> Self:
        """Read a body that may be a part of another."""
        raise NotImplementedError

    def to_members(self) -> dict[str, Any]:
        """Return this body as an object, to be written alone or inside another."""
        raise NotImplementedError
