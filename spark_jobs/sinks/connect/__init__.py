"""What a sink needs on a server of Spark Connect: stored procedures, in one jar."""
