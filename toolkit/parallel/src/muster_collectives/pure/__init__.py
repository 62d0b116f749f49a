"""The communicator of a machine without the compiled core."""
