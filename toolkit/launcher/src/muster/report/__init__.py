"""`muster report`: what a run's record says, as one page that opens anywhere, and as JSON."""
