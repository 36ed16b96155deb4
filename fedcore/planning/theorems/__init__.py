"""Numbers that theorems choose where a config leaves them open."""
