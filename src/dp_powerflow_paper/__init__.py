"""Experiments on public data, one file each. What they do freely, a producer may not do on private data."""
