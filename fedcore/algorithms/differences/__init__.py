"""Methods that follow a running estimate of the gradient, built from differences of gradients."""
