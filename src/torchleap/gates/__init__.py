"""LeAP's gates: the paper's module, its statistics and the optimizer of the gates."""
