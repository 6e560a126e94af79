"""What server and nodes tell the people who run them: lines of a log, and who waits for what."""
