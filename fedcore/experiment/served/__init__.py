"""Trained models for use on raw records, as scikit-learn estimators."""
