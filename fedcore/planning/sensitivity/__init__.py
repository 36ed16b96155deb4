"""Sensitivity of sums of moments, or of gradients and Hessians, and the decoding of such sums."""
