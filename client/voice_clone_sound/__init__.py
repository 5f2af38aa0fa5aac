"""What gateway and command do alike to the sound of a speech. Its speed and its loudness need the extra `audio`."""

MIN_SPEED, MAX_SPEED = 0.25, 4.0
"""Factors of the tempo."""
MIN_LOUDNESS, MAX_LOUDNESS = -40.0, -10.0
"""LUFS."""
