"""A process of ours at its start: where it looks for modules, and who may read what it writes."""
