"""The effects: processes, sockets, signals, logs. Knows `spec` and the types of a launch plan."""
