"""Constants of the per-record map that come from data: principal components, centres and scales, whitening.

They are public if they come from public records or from statistics that silos released, never from raw records.
"""
