"""gridfm."""
