"""Pure arithmetic of ranks, units and plans. No torch here."""
