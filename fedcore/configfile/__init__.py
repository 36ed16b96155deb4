"""Configs as files: YAML as people type it, read into sections, and written so that it reads back the same."""
