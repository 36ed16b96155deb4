"""A shuffler in the path of a round: sealed messages, what carries them, and who permutes and hands on a batch once."""
