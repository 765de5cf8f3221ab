"""The Wasserstein experiment: how far released voltages are from true ones."""
