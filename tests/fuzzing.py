"""The seed of long searches: fixed, or taken from FEDCORE_FUZZ_SEED, a number or `fresh` (`make slow`)."""

import os
import secrets


def fuzz_seed() -> int:
    """Shown, so that a search with a fresh seed can be repeated. A fixed one keeps chance out of CI."""
    value = os.environ.get("FEDCORE_FUZZ_SEED", "1")
    number = secrets.randbits(48) if value == "fresh" else int(value)
    print(f"\nFEDCORE_FUZZ_SEED={number}", flush=True)
    return number
