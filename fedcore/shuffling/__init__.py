"""A shuffler in the path of a round: sealed messages, their transport forms, and batches that are handed on once."""
