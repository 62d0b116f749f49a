"""Images from this checkout: built, named, tested, pushed. `python -m scripts.images --help`."""
