"""Methods of second order: Newton steps from what silos release of gradients and Hessians."""
