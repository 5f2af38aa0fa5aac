"""Fish Speech S2 Pro for the tools."""
