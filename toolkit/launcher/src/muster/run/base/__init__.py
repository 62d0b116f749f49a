"""What all rooms of `run` stand on: the loop, log pump, record, and readers of evidence."""
