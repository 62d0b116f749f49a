"""Programs over the library: bench, doctor, summary."""
