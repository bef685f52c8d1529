"""The signature by which a request shows that its sender knows an account's secret key.

    signed content   values of all extFields but Signature, ordered by name, concatenated, in UTF-8;
                     then the body as it is
    signature        Base64(HMAC-SHA1(secret key, signed content)), in the extField Signature

Names, order and the absence of separators are RocketMQ's: all official clients sign like this.
Names are ordered by code, so upper case comes before "_" and that before lower case.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping

from .crc import Buffer
from .properties import encode_text

ACCESS_KEY = "AccessKey"
SECURITY_TOKEN = "SecurityToken"  # noqa: S105, the name of a field
SIGNATURE = "Signature"

# Java's 4.9.8 client signs this field, its broker leaves it out: either way is taken for valid.
_UNIQUE_KEY_QUERY = "_UNIQUE_KEY_QUERY"


def signed_content(
    fields: Mapping[str, str], body: Buffer = b"", *, without: str | None = None
) -> bytes:
    """Return the bytes that a request's signature is made over."""
    text = "".join(fields[name] for name in sorted(fields) if name != SIGNATURE and name != without)
    return encode_text(text) + bytes(body)


def sign(content: bytes, secret_key: str) -> str:
    """Return the signature of some content."""
    digest = hmac.new(encode_text(secret_key), content, hashlib.sha1).digest()
    return base64.b64encode(digest).decode("ascii")


def sign_fields(
    fields: Mapping[str, str],
    body: Buffer = b"",
    *,
    access_key: str,
    secret_key: str,
    security_token: str | None = None,
) -> dict[str, str]:
    """Return a request's extFields with the account's key and the signature added."""
    signed = {**fields, ACCESS_KEY: access_key}
    if security_token is not None:
        signed[SECURITY_TOKEN] = security_token
    signed[SIGNATURE] = sign(signed_content(signed, body), secret_key)
    return signed


def is_signature_valid(fields: Mapping[str, str], body: Buffer = b"", *, secret_key: str) -> bool:
    """Whether a request's Signature was made with this secret key."""
    given = encode_text(fields.get(SIGNATURE, ""))
    valid = _is_equal(given, sign(signed_content(fields, body), secret_key))
    if _UNIQUE_KEY_QUERY in fields:
        content = signed_content(fields, body, without=_UNIQUE_KEY_QUERY)
        valid = _is_equal(given, sign(content, secret_key)) or valid
    return valid


def _is_equal(given: bytes, right: str) -> bool:
    # In constant time: how far a guess agrees must not show.
    return hmac.compare_digest(given, right.encode("ascii"))
