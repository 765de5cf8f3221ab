"""Noise on the lines of a network with restoration of power flow, after fioretto2019 (extra `nlp`)."""
