"""Builders of phases: one answer a round, local steps, evaluations, differences of gradients, Newton."""
