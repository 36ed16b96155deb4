"""What a home keeps of a run: its config, and what its checkpoint is bound to."""
