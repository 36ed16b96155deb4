"""Reference of a silo's policy, from its pydantic model."""

from __future__ import annotations

import json

from extension.keys import allowed
from extension.markers import plain


def policy() -> str:
    """Markdown of every key of a policy."""
    from fedcore.silo.policies.policy import Policy

    schema = Policy.model_json_schema()
    parts = []
    for key, each in schema["properties"].items():
        default = f", default `{json.dumps(each['default'])}`" if "default" in each else ", required"
        parts += [f"`{key}`", f": *{plain(allowed(each, schema))}{default}.* {plain(each.get('description', ''))}", ""]
    return "\n".join(parts)
