"""Data sources of generated silos: hospitals, public tables, images, and made-up records."""
