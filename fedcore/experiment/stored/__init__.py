"""Stored parts of a run in its home: its config, and the conditions under which its checkpoint is valid."""
