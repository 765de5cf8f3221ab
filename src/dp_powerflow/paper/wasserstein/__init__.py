"""wasserstein."""
