"""Tracking of runs: the interface of a store, and the tracker that writes to one by a thread beside training."""
