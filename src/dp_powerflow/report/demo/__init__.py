"""`demo`: a twin and the paper's release on public data, side by side, as a table and as a page."""
