"""How large what is asked for may be, each number with its reason: a count is held against these before a list is made.

An agreement is a few hundred bytes that name counts, and whoever sends it chooses them. So what a silo spends on its
own plan, before it has agreed to anything, is bounded: `AN_AGREEMENT` of memory and `MOST_EFFORT` points of accounting.
Rounds are no list (a plan of a billion has closed forms); what is one, per silo, answer, stage or block, has a limit.
"""

from __future__ import annotations

AN_AGREEMENT = 2**28
"""Bytes that a site's process grows by at most while it reads an agreement and makes its plan."""
LARGEST_AGREEMENT = 2**21
"""Bytes of an agreement: JSON takes some 25 times its length as objects while it is read."""
LARGEST_SPEC = 2**23
"""Bytes of what opens a site: the most silos, some 400 bytes each, or a thousand with schemas of a hundred columns."""
LARGEST_TEXT = 2**23
"""Bytes of a file that is read as YAML or JSON: a config or a manifest of the most silos has some 400 for each."""
MOST_VALUES = 2**20
"""Values of a YAML text, each alias counted as all that it stands for: a few hundred bytes can name 10^12."""
LARGEST_CONSTANTS = 2**29
"""Bytes of a preparation's constants on disk: a projection of the most features that a table may have."""
LARGEST_KEY = 2**16
"""Bytes of a key, a certificate's chain, a secret or an anchor."""
MOST_SILOS = 2**14
"""Of a problem. Each is a share in each phase, and a name, a size and perhaps a weight in the agreement."""
LONGEST_ADDRESS = 2**12
"""Bytes of a receipt's address: a name of 200 characters, each escaped, and two numbers."""
LARGEST_RECEIPTS = 2**24
"""Bytes of the addresses of receipts that travel, or are kept, together."""
MOST_ARRAYS = 2**16
"""Packed together: an array of no numbers is 16 bytes, and some 300 as an object."""
MOST_KEYS = 2**7
"""Of a section, a method or an objective in an agreement: far more than any has."""
MOST_SHARES = 2**16
"""Silos times kinds of rounds of a plan: a share is some 300 bytes as object, and as many as text for the digest."""
MOST_ROUNDS = 10**9
"""Of a phase; a plan of so many takes seconds, and no count of rounds or answers overflows."""
MOST_SAMPLED = 2**20
"""Answers of a phase about samples: composing more takes an accountant minutes, and gigabytes."""
MOST_STEPS = 2**16
"""Points of a silo's local steps in one round, between which it answers: a step's length may be a number of the plan,
and a silo computes all of them before it sends."""
MOST_BLOCKS = 2**20
"""Fresh blocks of a phase, over all silos: each is a row of a ledger about records of its own."""
MOST_ADDED_BLOCKS = 2**16
"""The same where whole silos have a target: all blocks of a silo add there, one by one."""
MOST_STAGES = 2**15
"""Of a phase. Each halves a gap, so a thousand are beyond floating point; without variance they do not grow longer."""
MOST_LISTED = 64
"""Numbers of rounds in a list, one for each phase: phases halve at most 2^40 records."""
LARGEST_GRID = 2**20
"""Points of a grid on which a site discretises one answer's loss: some 100 MB while it is made."""
A_COMPOSITION = 2**16
"""Points that a composition counts for beside its grid's: what it costs however small that is."""
MOST_EFFORT = 2**27
"""Points for which a guarded site accounts for one agreement, before its operator's policy has seen the plan: about a
minute of a core, at 1 to 5 million points a second. The searches for a plan's noise, one for each different rate of
samples, are by far most of it, at 0.3 to 20 million points each. So there are some 90 silos of different sizes, or one
with a million answers about samples; the largest plan of conf/ takes 13 million."""
MOST_SIMULATED_EFFORT = 3 * 2**30
"""The same at a site of simulated silos, which are whoever's they are who asks: a thousand silos of different sizes."""
MOST_WEIGHTS = 2**26
"""Of a model: half a gigabyte in each array and answer."""
MOST_CELLS = 2**31
"""Numbers of all records that a generator makes up for a simulation: 16 GB as float64."""
MOST_SWEPT = 2**16
"""Cells of a sweep: each is a whole experiment, checked by itself."""
