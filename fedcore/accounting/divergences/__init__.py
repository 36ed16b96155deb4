"""Renyi divergences of one order: of single answers, and of what the answers that touch one record come to."""
