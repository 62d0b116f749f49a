"""What a script wraps its model and its optimizer in."""
