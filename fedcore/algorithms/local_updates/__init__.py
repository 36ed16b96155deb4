"""Methods whose participants take steps of their own between two messages."""
