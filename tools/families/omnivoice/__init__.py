"""What the tools need to know of OmniVoice."""
