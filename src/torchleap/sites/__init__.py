"""Where gates sit in a model, and the hooks that put them there."""
