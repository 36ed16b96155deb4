"""Constants of the per-record map that come from data: principal components, centres and scales, whitening.

Of public records, or of statistics that silos have released, they are public; from silos' own records they never are.
"""
