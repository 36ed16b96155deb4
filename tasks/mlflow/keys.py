"""MLflow keys for users' names: the name itself where MLflow accepts it, and a different key for each name."""

from __future__ import annotations

import hashlib
import posixpath
import re
from collections import Counter
from collections.abc import Iterable

LONGEST_KEY = 250
"""MLflow's own limit."""
DIGITS = 16
NAME = re.compile(r"[\w.:/ -]+")
_OTHER = re.compile(r"[^\w.:/ -]")
_ESCAPED = re.compile(r"[^\w -]")


def keys_of(names: Iterable[str], form: str = "{}", parts: bool = True) -> dict[str, str]:
    """The key of each name: `form` with the name in place of {}. `parts`: True if a key may contain "/" of a name.

    1. Characters that MLflow refuses become underscores.
    2. If two names then have one key, or it is no path, the name is escaped: `<7` is `:3c:7`. Such characters, dots
       and colons are hexadecimal code points between colons.
    3. If that key is taken or too long, it ends in a digest of the name.

    No two names have one key, whatever their order.
    """
    known, room = sorted(set(names)), LONGEST_KEY - len(form) + len("{}")
    plain = {name: _plain(name, parts)[:room] for name in known}
    counts = Counter(plain.values())
    found = {name: key for name, key in plain.items() if _is_path(key) and (counts[key] == 1 or key == name)}
    taken = set(plain.values())
    for name in known:
        if name not in found:
            key = _ESCAPED.sub(lambda each: f":{ord(each[0]):x}:", name) or ":nothing:"
            if len(key) > room or key in taken:
                digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:DIGITS]
                key = f"{key[: room - DIGITS - 1]}-{digest}"
            found[name] = key
    return {name: form.replace("{}", key) for name, key in found.items()}


def _plain(name: str, parts: bool) -> str:
    key = _OTHER.sub("_", name)
    return key if parts else key.replace("/", "_")


def _is_path(key: str) -> bool:
    """True if MLflow accepts the key below a folder of keys: it refuses paths that are not normalised."""
    return NAME.fullmatch(key) is not None and posixpath.normpath(f"x/{key}") == f"x/{key}"
