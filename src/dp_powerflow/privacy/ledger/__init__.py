"""What every protected data set may spend in its lifetime, and what it has spent."""
