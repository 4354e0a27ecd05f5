"""The command line: commands, options, and the text that they print."""
