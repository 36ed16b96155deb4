"""Keys of a silo's draws: from its own secret, or, for a simulated silo, from the public seed and addresses.

One interface covers both, so other files need not distinguish them. Secret keys depend on the run, its plan and every
question, so no draw serves two of them. Seeded keys depend on none of these. Runs that differ in one setting share
their draws, and a table repeats on any machine. Seeded keys protect no one.
"""

from fedcore.silo.keys.interface import Keys
from fedcore.silo.keys.secret import SecretKeys
from fedcore.silo.keys.seeded import SeededKeys

__all__ = ["Keys", "SecretKeys", "SeededKeys"]
