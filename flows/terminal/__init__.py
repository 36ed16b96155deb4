"""What a command shows on a terminal while it works: the console, and how far runs and trials are."""
