"""Pocket TTS for the tools."""
