"""Trace a model: what is computed from which field."""
