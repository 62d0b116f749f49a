"""The request of the job, read from files and variables."""
