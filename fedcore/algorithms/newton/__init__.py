"""Methods of second order: Newton steps from released gradients and Hessians."""
