"""Hosts as plain processes of this machine."""
