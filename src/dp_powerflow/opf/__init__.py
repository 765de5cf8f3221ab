"""Optimal power flow of distribution feeders by linearised equations (extra `opf`)."""
