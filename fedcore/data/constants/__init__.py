"""Constants of the per-record map from data: principal components, scales, whitening.

They are public if they come from public records or from statistics that silos released, never from raw records.
"""
