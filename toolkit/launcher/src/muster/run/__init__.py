"""The effects: processes, sockets, signals, logs. Knows `types` and the types of a launch plan."""
