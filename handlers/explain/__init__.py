"""What happened and why, as text: the history of a transaction, and the audit of a lock."""
