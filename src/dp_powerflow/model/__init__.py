"""The differentially private model of the loads."""
