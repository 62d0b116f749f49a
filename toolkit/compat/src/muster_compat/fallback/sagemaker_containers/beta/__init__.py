"""Where the older package kept its modules."""
