"""Staging: the user's code, its packages, and what this host has. Imports nothing but spec."""
