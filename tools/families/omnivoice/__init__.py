"""OmniVoice for the tools."""
