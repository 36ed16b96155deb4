"""Public tables, one module each, and their random split between silos."""
