"""Silos' files and records, generated silos, and the public facts that planning uses.

`dataset` is the entry point (`facts`, `prepare`). Only `silo_file.open_records` reads a silo's records, and only code
at the silo calls it.
"""
