"""The paper's Table II, made by measurement."""
