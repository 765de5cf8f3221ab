"""Loads from trained networks: a forecaster trained by DP-FedAvg, and a WGAN trained by DP-SGD."""
