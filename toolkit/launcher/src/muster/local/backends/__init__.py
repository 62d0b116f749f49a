"""What hosts are made of: plain processes, namespaces or containers."""
