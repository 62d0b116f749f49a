"""The control channel between hosts: messages, authentication, reconnects, both ends."""
