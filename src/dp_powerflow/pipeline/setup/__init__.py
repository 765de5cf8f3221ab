"""`init`: a config for somebody's feeder and meters. What it takes from private data are facts of format."""
