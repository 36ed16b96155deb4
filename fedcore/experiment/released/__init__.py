"""Statistics that silos release before a run, one kind per file."""
