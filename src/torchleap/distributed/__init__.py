"""Training on several ranks: collectives (`ranks`), FSDP2 (`fsdp`) and TorchRec (`torchrec`)."""
