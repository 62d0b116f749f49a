"""What this machine has: devices, networks, limits, programs, frameworks."""
