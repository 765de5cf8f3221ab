"""The twin network: which figures get noise, what that promises, how it is drawn, how far it is off."""
