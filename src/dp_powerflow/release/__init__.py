"""The one pipeline: plan → spend → fit → sample → solve → write → certify."""
