"""Privacy: events, calibration, accounting, noise, the ledger and the private silo."""
