"""The message that a person reads when a config is refused."""

from collections.abc import Callable
from typing import Any

import pytest

from fedcore.errors import InputError


def refusal(load: Callable[..., Any], *arguments: Any) -> str:
    """The sentence of the error, which shows no other one."""
    with pytest.raises(InputError) as caught:
        load(*arguments)
    assert caught.value.__suppress_context__ or caught.value.__cause__ is None
    return str(caught.value)
