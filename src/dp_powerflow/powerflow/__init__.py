"""AC power flow for many snapshots of one feeder."""
