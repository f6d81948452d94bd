"""Several ranks: collectives, FSDP2 and TorchRec."""
