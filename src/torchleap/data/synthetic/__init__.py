"""Synthetic data with known ground truth: a small world of tensors, and an endless ranking log."""
