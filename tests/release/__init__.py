"""What `make release` does: build, check, and try the files as a user would, outside of the clone."""
