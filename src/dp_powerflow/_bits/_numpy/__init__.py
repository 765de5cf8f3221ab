"""Kernels as NumPy operations, for whoever reads a release and has no compiled ones: the same bits.

A kernel `package.module.name` has its counterpart in `package._numpy.module`, under the same name and with
the same parameters; `_bits.compiled` finds it there. Kernels round every sum, product, quotient and root once
and add in a fixed order, and so do arrays; where an order counts, a counterpart adds row by row or with
`accumulate`.
"""
