"""The compiled core (csrc) as Python uses it."""
