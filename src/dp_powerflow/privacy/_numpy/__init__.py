"""Kernels of this room as NumPy operations (`_bits._numpy`)."""
