"""Floating-point kernels with the same bits on every x86-64 processor.

They use +, −, ×, ÷ and √ in a fixed order, which IEEE 754 defines to the last bit: no BLAS, no libm, no
contraction, no reassociation. Vector instructions run over independent results only.
"""
