"""Models: predictions and clipped sums of per-record gradients, without per-record tensors."""
