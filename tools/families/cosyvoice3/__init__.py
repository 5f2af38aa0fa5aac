"""CosyVoice3 for the tools."""
