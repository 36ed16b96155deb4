"""How far one record can move a sum of moments, or of gradients and Hessians, and what is read from such a sum."""
