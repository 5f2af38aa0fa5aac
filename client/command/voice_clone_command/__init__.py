"""The command `voice-clone`: voices and speech of a Triton server in the shell, and for language models."""
