"""Errors, atomic files, checks of settings, optional imports and text."""
