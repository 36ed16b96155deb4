"""What a silo's operator allows: read from a file, recorded, in force until it expires."""
