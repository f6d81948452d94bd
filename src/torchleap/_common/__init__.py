"""Shared foundations: errors, checks, optional imports, plain values, atomic files and text.

Nothing here knows about fields, models or data; every other module may import from here.
"""
