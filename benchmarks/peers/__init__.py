"""One module per tool; each offers `run(case, snapshots, variant) -> Outcome`."""
