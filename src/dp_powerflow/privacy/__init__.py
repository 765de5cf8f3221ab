"""Budget, accounting, noise, the cryptographic generator, the private state and its ledger."""
