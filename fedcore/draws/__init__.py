"""Simulated draws: raw words of Philox4x64-10 and their transformations, the same on every machine.

NumPy promises no stream of `standard_normal`, `choice` or `permutation` over versions. Its `log`, `exp` and `tanh`
differ in their last bits between processors. This room therefore uses integer operations, comparisons, and the
floating-point operations that IEEE 754 rounds correctly: `+ - * /`, `sqrt`, and conversions. No later change of this
room may move a bit: tests compare it with integers of Python. These draws give no protection; guarded silos draw
elsewhere.
"""
