"""Summaries for a reader: what the numbers of the layers below mean."""
