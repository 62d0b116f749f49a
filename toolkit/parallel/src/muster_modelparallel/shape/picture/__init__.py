"""A plan as one HTML file: drawings are SVG inside it, nothing is loaded from elsewhere."""
