"""VoxCPM2 for the tools."""
