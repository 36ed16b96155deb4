"""Tracking of runs: the interface of a store, and the tracker whose thread writes to one beside training."""
