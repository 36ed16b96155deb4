"""Config files: reads hand-written YAML into sections, and writes YAML that reads back the same."""
