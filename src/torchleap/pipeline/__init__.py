"""From a task to a decision: search, retrain, decide and serve."""
