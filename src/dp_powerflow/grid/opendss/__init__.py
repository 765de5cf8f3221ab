"""opendss."""
