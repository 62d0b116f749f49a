"""What was asked for: keys, sources, one frozen value. No torch here."""
