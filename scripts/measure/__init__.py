"""Figures of this repository that must not get worse. `scripts/house` prints and checks them."""
