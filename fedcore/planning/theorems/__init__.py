"""Numbers that theorems choose where a config leaves them to these."""
