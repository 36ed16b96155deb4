"""Services that carry messages between parties, a shuffler and a relay, with their HTTP code."""
