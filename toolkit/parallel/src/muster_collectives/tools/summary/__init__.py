"""Reads the summaries of a run's groups (COLLECTIVES_SUMMARY_DIR): figures, and who held it up."""
