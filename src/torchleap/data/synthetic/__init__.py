"""Synthetic data with known ground truth."""
