"""Terminal output of commands: the console, progress of runs and of trials, and warnings."""
