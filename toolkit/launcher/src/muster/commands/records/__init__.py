"""Commands that read records of runs."""
