"""Differentially private optimal power flow with chance constraints, after dvorkin2020 (extra `opf`)."""
