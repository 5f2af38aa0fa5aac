"""What gateway and command do alike to the sound of a speech. Its speed and its loudness need the extra `audio`."""

from voice_clone_text.prosody import LEAST_RATE, MOST_RATE

MIN_SPEED, MAX_SPEED = LEAST_RATE, MOST_RATE
"""Factors of the tempo."""
MIN_LOUDNESS, MAX_LOUDNESS = -40.0, -10.0
"""LUFS."""
