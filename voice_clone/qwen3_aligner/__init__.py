"""Qwen3-ForcedAligner: a network that says of each word of a known text when it begins and ends."""
