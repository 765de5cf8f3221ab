"""dvorkin2023: synthetic data sets of grids, power records of a plant and capacities of lines.

The system protects a data set by Laplace noise and repairs it by an optimisation that knows what the data are
for: a regression of power on weather (`regression`), or optimal power flow within the capacities
(`capacities`). What was published is implemented as meant. Where the authors' public code does something
else, tests show what that costs.
"""
