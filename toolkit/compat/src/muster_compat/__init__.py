"""What stands in for packages that a script imports and the machine does not have."""
