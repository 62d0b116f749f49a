"""Hosts as containers of an engine."""
