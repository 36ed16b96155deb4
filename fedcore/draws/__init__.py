"""Simulated draws: raw words of Philox4x64-10, and what this package makes of them, the same on every machine.

NumPy promises no stream of `standard_normal`, `choice` or `permutation` over versions, and its `log`, `exp` and `tanh`
differ in their last bits between processors. This room therefore uses integer operations, comparisons, and the
floating-point operations that IEEE 754 rounds correctly: `+ - * /`, `sqrt`, and conversions. No later change of this
room may move a bit: tests hold it against integers of Python. It protects nobody; guarded silos draw elsewhere.
"""
