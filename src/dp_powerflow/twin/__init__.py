"""The twin network: a differentially private copy of the true one, drawn once, that all is solved on."""
