"""Renyi divergences of one order: of single answers, and of all answers that touch one record."""
