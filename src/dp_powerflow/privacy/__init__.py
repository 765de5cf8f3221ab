"""Budget, accounting, noise and the cryptographic generator."""
