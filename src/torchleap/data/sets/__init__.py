"""Public data sets."""
