"""What calls return, and what runs them: works, the operation queue, transfers."""
