"""Whether a release would work, found out with public loads before anything is spent."""
