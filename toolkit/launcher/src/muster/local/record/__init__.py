"""What a run leaves on disk, and the commands that read it."""
