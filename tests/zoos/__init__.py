"""The models of public zoos, in their own training loops: attach, train, prune, save, load."""
