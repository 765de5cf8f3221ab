"""What released voltages reveal of the network. Everything computed here is INTERNAL."""
