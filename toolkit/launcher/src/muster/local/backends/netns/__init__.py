"""Hosts in namespaces of this kernel."""
