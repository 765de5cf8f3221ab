"""Loads with noise that keep the cost of dispatch: bilevel obfuscation, after mak2019 and mak2020.

Every load of a grid gets Laplace noise; then the nearest loads are sought whose least cost of dispatch is
that of the true ones, within a share β. "Least cost" makes it a program within a program.
"""
