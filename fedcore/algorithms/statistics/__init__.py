"""Questions to silos beside training.

Before a run: releases of statistics, one file each, with their shared part in `pooled`. Between the phases of any
method: histograms of held-out records, in `evaluated`. `watched` tests a known curvature during training.
"""
