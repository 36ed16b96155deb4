"""Writes values as YAML that reads back the same, by this loader and by one of YAML 1.1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from fedcore.configfile.yaml_loader import Loader, complaint

_READER = Loader("")
_TEXT = "tag:yaml.org,2002:str"


class _Quoting:
    """Mixin that quotes texts which a version of YAML would read as another value, or refuse."""

    def represent_str(self, text: str) -> Any:
        as_core = _READER.resolve(yaml.ScalarNode, text, (True, False))
        quoted = as_core != _TEXT or complaint(text) is not None
        # PyYAML folds lines at U+0085 and U+2028, and reads the fold back as a space, except in double quotes.
        style = '"' if not text.isprintable() else "'" if quoted else None
        return self.represent_scalar(_TEXT, text, style=style)  # type: ignore[attr-defined]


class _Dumper(_Quoting, yaml.SafeDumper):
    pass


class _QuickDumper(_Quoting, getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
    """The same dumper, twenty times as fast where PyYAML was built with its C library."""


for _kind in (_Dumper, _QuickDumper):
    _kind.add_representer(str, _kind.represent_str)


def yaml_text(values: Mapping[str, Any]) -> str:
    """YAML for editing: lines of up to 110 characters, short lists on one line."""
    return str(
        yaml.dump(dict(values), Dumper=_Dumper, sort_keys=False, default_flow_style=None, width=110, allow_unicode=True)
    )


def yaml_block(values: Mapping[str, Any]) -> str:
    """YAML with one value on each line, written fast."""
    return str(yaml.dump(dict(values), Dumper=_QuickDumper, sort_keys=False))


def quoted(text: str) -> str:
    """The text in double quotes, on one line."""
    made = str(yaml.dump(text, Dumper=_Dumper, default_style='"', allow_unicode=True, width=float("inf")))
    return made.rstrip("\n")
