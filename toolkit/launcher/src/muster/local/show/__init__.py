"""What a run shows on the screen."""
