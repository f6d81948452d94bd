"""Training: the loop, fit, stream, checkpoints, drift and fine-tuning."""
