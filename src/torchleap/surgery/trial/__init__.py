"""Run a model on batches and compare what it returns.

Surgery trusts no reasoning alone: it runs the model on the example and on batches that differ from
it as real batches do (`examples`, `lengths`), leaves the model as it was (`run`, `state`), and
compares outputs up to rounding (`compare`, `rounding`). This shelf knows nothing about graphs.
"""
