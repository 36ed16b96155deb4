"""Keys of a silo's draws: a secret of its own, or, of a simulated silo, the public seed and addresses alone.

Both kinds have one interface, so that no other file asks which of them a silo has. Secret keys fold in the run, its
plan and every question: a draw never serves two of them. Seeded keys fold in none, so that runs which differ in a
setting alone share their draws, and a table repeats on any machine. They protect nobody.
"""

from fedcore.silo.keys.interface import Keys
from fedcore.silo.keys.secret import SecretKeys
from fedcore.silo.keys.seeded import SeededKeys

__all__ = ["Keys", "SecretKeys", "SeededKeys"]
