"""A run as a trace: Chrome's trace event format, which Perfetto opens."""
