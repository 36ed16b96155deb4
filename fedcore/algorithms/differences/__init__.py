"""Methods that follow a running estimate of the gradient, made of differences of gradients."""
