"""Silos: their files, their records, how simulated ones are made, and the public facts that planning uses.

`dataset` is the way in (`facts`, `prepare`); `silo_file.open_records` is the only function that reads a
silo's records, and only code at the silo calls it.
"""
