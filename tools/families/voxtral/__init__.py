"""Voxtral TTS for the tools."""
