"""The verbs of c10d, lowered to calls of the core."""
