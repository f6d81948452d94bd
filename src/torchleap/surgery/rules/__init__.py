"""Rules: how each operation is written again without the dropped columns."""
