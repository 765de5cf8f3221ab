"""Derived figures from private loads and a twin, against those from true loads on the true network."""
