"""What happened and why, for people: the history of a transaction, and the audit of a lock."""
