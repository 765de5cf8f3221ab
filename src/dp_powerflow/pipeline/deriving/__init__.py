"""Derived releases: a study of what was released, the figures it gives, and their check by a stranger."""
