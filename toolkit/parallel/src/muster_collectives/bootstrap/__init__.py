"""How the ranks of a job find each other and make a group: store, agreement, locality."""
