"""Accounts of a silo, worked out by the auditor: what releases cost, what is known to be charged, over versions."""
