"""What some scripts import of the library's own tests."""
