"""Releases of statistics before a run, one file each; `pooled` is what they share."""
