"""Commands that make a page of what runs did."""
