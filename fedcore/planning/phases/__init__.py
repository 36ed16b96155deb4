"""Phases by the way in which methods ask: one answer a round, local steps, evaluations, differences of gradients."""
