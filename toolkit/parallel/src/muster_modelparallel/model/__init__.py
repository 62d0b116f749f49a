"""A model and its stages in one process: probe, split, proof. Needs torch, and no other rank."""
