"""Release mechanisms by kind, behind one small interface (`interface.Mechanism`)."""
