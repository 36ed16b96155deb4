"""Interpretation of texts, column types and file formats: spellings of ids, numerals, encodings."""
