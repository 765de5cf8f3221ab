"""Public facts of days: calendar and weather. Nothing here is of a meter or of the network."""
