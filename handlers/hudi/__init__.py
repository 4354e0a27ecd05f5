"""What the files of a Hudi table say: its timeline, its markers, its commit metadata. Start at `timeline.py`.

Every function here takes names or bytes and returns values. Any input may come from a foreign program, a broken one, or a file
that is being written. So each function that reads raises `UnreadableHudi`, and nothing else.
"""
