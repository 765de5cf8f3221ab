"""The paper's Table I, made by measurement."""
