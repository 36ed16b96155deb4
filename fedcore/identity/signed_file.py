"""Signed files that people pass on: JSON that anybody can read, with the signer's public keys and signature.

A file proves that it was not changed since its signer made it. Who the signer is, people find out by its fingerprint.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

from pydantic import ConfigDict, Field, TypeAdapter
from pydantic_core import from_json

from fedcore.arrays import canonical_json
from fedcore.bounded_file import read_within
from fedcore.errors import InputError
from fedcore.identity.keys import Identity, PublicIdentity

FORM = 1
"""Version of signed files."""
LARGEST_FILE = 2**20
_PREFIX = b"fedcore signed file\0"


_Key = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
_Signature = Annotated[str, Field(pattern=r"^[0-9a-f]{128}$")]
_FILE = TypeAdapter(tuple[str, int, dict[str, Any], _Key, _Key, _Signature], config=ConfigDict(strict=True))
_KEYS = "fedcore", "form", "content", "signing_key", "sealing_key", "signature"


def signed_text(kind: str, content: dict[str, Any], signer: Identity) -> str:
    """The text of a signed file of this kind. `content`: plain values."""
    public = signer.public
    fields = [kind, FORM, content, public.signing.hex(), public.sealing.hex()]
    signature = signer.sign(_PREFIX + canonical_json(fields).encode()).hex()
    return json.dumps(dict(zip(_KEYS, [*fields, signature], strict=True)), indent=1) + "\n"


def kind_of(text: bytes) -> str | None:
    """The kind that a file's text claims; nothing of it is checked. None for text of another form."""
    try:
        found = from_json(text)
    except ValueError:
        return None
    kind = found.get(_KEYS[0]) if type(found) is dict else None
    return kind if type(kind) is str else None


def read_signed(kind: str, path: Path) -> tuple[dict[str, Any], PublicIdentity]:
    """Content and signer of a signed file of this kind; the content is not checked. Raises InputError."""
    try:
        text = read_within(path, LARGEST_FILE)
    except OSError as error:
        raise InputError(f"{path}: it cannot be read ({error.strerror})") from None
    return signed_content(kind, text, str(path))


def signed_content(kind: str, text: bytes, where: str) -> tuple[dict[str, Any], PublicIdentity]:
    """As `read_signed`, of the text of a file at `where`, at most `LARGEST_FILE` bytes."""
    try:
        values = from_json(text)
        if type(values) is not dict or set(values) != set(_KEYS):
            raise ValueError
        found, form, content, signing, sealing, signature = _FILE.validate_python(tuple(values[key] for key in _KEYS))
    except ValueError:
        raise InputError(f"{where}: it is no signed file of fedcore, or was cut on its way") from None
    if found != kind:
        raise InputError(f"{where}: it is no {kind}, but holds {found[:40]!r}")
    if form != FORM:
        raise InputError(f"{where}: it is a {kind} of form {form}, and this installation reads form {FORM}")
    signer = PublicIdentity(bytes.fromhex(signing), bytes.fromhex(sealing))
    try:
        signer.check_signature(
            bytes.fromhex(signature), _PREFIX + canonical_json([kind, form, content, signing, sealing]).encode()
        )
    except ValueError:
        raise InputError(f"{where}: the {kind} was changed after it was signed; ask its maker for the file") from None
    return content, signer
