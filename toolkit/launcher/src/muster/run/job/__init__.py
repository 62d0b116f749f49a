"""The job on this host: state machine, coordinator, supervisor, verdict and teardown."""
