"""Command: one request or one response, RocketMQ's RemotingCommand.

    flag bit   meaning
    0 (1)      response; clear in a request
    1 (2)      oneway: the receiver must not answer

A response carries the opaque of its request. Each direction counts its own opaques, so the same
number may be alive in both: only bit 0 tells which is which.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .codes import Language, Serialization

VERSION = 409  # V4_9_8. Clients read it from every answer, and some refuse SQL filters below 232.

_RESPONSE = 1
_ONEWAY = 2


@dataclass(slots=True)
class Command:
    """One frame's worth of meaning: a header and a body."""

    code: int
    opaque: int = 0
    flag: int = 0
    fields: dict[str, str] = field(default_factory=dict)
    body: bytes | memoryview = b""
    remark: str | None = None
    language: int = Language.PYTHON
    version: int = VERSION
    serialization: int = Serialization.JSON

    @property
    def is_response(self) -> bool:
        """Whether this answers a request."""
        return bool(self.flag & _RESPONSE)

    @property
    def is_oneway(self) -> bool:
        """Whether the sender expects no answer."""
        return bool(self.flag & _ONEWAY)

    @classmethod
    def request(
        cls,
        code: int,
        fields: dict[str, str] | None = None,
        body: bytes | memoryview = b"",
        *,
        oneway: bool = False,
        serialization: int = Serialization.JSON,
    ) -> Command:
        """Make a request; its opaque is given by the Connection that sends it."""
        return cls(
            code=code,
            flag=_ONEWAY if oneway else 0,
            fields=fields if fields is not None else {},
            body=body,
            serialization=serialization,
        )

    def reply(
        self,
        code: int,
        remark: str | None = None,
        fields: dict[str, str] | None = None,
        body: bytes | memoryview = b"",
    ) -> Command:
        """Make the response to this request: same opaque, same serialization."""
        return Command(
            code=code,
            opaque=self.opaque,
            flag=_RESPONSE,
            fields=fields if fields is not None else {},
            body=body,
            remark=remark,
            serialization=self.serialization,
        )
