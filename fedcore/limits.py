"""Limits on requested sizes, each with its reason; counts are checked before lists are built.

An agreement is a few hundred bytes that name counts, and its sender chooses them. So the work of a silo on its own
plan, before it agrees, is bounded: `AN_AGREEMENT` of memory and `MOST_EFFORT` points of accounting. A plan holds no
list of rounds (a billion has closed forms); lists per silo, answer, stage or block each have a limit.
"""

from __future__ import annotations

AN_AGREEMENT = 2**28
"""Bytes by which a site's process grows at most while it reads an agreement and makes its plan."""
LARGEST_AGREEMENT = 2**21
"""Bytes of an agreement: JSON takes some 25 times its length as objects while it is read."""
LARGEST_SPEC = 2**23
"""Bytes of a site's spec: `MOST_SILOS` at some 400 bytes each, or a thousand with schemas of a hundred columns."""
LARGEST_TEXT = 2**23
"""Bytes of a file that is read as YAML or JSON: a config or a manifest has some 400 for each silo."""
MOST_VALUES = 2**20
"""Values of a YAML text, each alias counted as all values that it repeats: a few hundred bytes can name 10^12."""
LARGEST_CONSTANTS = 2**29
"""Bytes of a preparation's constants on disk: a projection of the most features that a table may have."""
LARGEST_KEY = 2**16
"""Bytes of a key, a certificate's chain, a secret or an anchor."""
MOST_SILOS = 2**14
"""Silos of a problem. Each is a share in each phase, and a name, a size and perhaps a weight in the agreement."""
LONGEST_ADDRESS = 2**12
"""Bytes of a receipt's address: a name of 200 characters, each escaped, and two numbers."""
LARGEST_RECEIPTS = 2**24
"""Bytes of the addresses in one message, or one stored row, of receipts."""
MOST_ARRAYS = 2**16
"""Arrays packed together: an array of no numbers is 16 bytes, and some 300 as an object."""
MOST_KEYS = 2**7
"""Keys of a section, a method or an objective in an agreement: far more than any has."""
MOST_SHARES = 2**16
"""Silos times kinds of rounds of a plan: a share is some 300 bytes as object, and as many as text for the digest."""
MOST_ROUNDS = 10**9
"""Rounds of a phase; a plan of so many takes seconds, and no count of rounds or answers overflows."""
MOST_SAMPLED = 2**20
"""Answers of a phase about samples: composing more takes an accountant minutes, and gigabytes."""
MOST_STEPS = 2**16
"""Local steps of a silo in one round, which it computes before it sends; the plan may choose their number."""
MOST_BLOCKS = 2**20
"""Fresh blocks of a phase, over all silos: each is a row of a ledger about records of its own."""
MOST_ADDED_BLOCKS = 2**16
"""Fresh blocks where whole silos have a target: there the charges of all blocks of a silo add up, one by one."""
MOST_STAGES = 2**15
"""Stages of a phase. Each halves a gap, so a thousand reach the limit of floating point; without variance they do not
grow longer."""
MOST_LISTED = 64
"""Entries of a list with one number of rounds for each phase: phases halve at most 2^40 records."""
LARGEST_GRID = 2**20
"""Points of a grid on which a site discretises one answer's loss: some 100 MB while it is made."""
A_COMPOSITION = 2**16
"""Points added to those of a composition's grid: the cost of a composition on the smallest grid."""
MOST_EFFORT = 2**27
"""Points of accounting at a guarded site for one agreement, before its operator's policy has seen the plan. At 1 to 5
million points a second this is about a minute of a core. Most go to the searches for a plan's noise, one for each
different rate of samples, of 0.3 to 20 million points each. This allows some 90 silos of different sizes, or one with
a million answers about samples. The largest plan of conf/ takes 13 million."""
MOST_SIMULATED_EFFORT = 3 * 2**30
"""Points of accounting at a site of simulated silos, which belong to the driver: a thousand silos of different sizes.
"""
MOST_WEIGHTS = 2**26
"""Weights of a model: half a gigabyte in each array and answer."""
MOST_CELLS = 2**31
"""Numbers of all generated records of a simulation: 16 GB as float64."""
MOST_SWEPT = 2**16
"""Cells of a sweep: each is a whole experiment, checked by itself."""
