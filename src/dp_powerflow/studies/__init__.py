"""Figures that follow from synthetic loads and a twin: optimal dispatch, hosting capacity, reliability."""
