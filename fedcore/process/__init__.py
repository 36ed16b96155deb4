"""Start of a process: module search path, permissions of written files, limit of open files."""
