"""Who holds a run, a sweep or a release of statistics."""
