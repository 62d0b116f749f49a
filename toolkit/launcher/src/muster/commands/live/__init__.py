"""Commands that speak to a run while it runs."""
