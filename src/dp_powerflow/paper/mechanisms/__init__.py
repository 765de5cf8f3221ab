"""Release mechanisms, one file each, behind one small interface (`interface.Mechanism`)."""
