"""What writers did, attempt by attempt: as the picture of the demo and the timelines of the page draw it."""
