"""What writers did, attempt by attempt: as the timelines of the page draw it."""
