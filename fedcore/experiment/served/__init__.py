"""A trained model as it is used afterwards: by raw records, in scikit-learn."""
