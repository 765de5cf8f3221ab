"""The one pipeline: plan → spend → fit → certify → sample → solve → write → publish."""
