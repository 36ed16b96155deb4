"""Who holds a run, a sweep or a release of statistics, and what was left behind by a driver that is gone."""
