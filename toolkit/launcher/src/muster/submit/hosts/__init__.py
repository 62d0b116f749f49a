"""`muster submit --on hosts:FILE`: hosts that the user's own ssh client reaches."""
