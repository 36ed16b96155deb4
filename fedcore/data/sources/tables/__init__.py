"""Public tables split at random between silos, one file each."""
