"""Programs over the library: bench, doctor, autotune, summary."""
