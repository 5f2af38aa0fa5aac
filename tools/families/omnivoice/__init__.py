"""Tools for OmniVoice."""
