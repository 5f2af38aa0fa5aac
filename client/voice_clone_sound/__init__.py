"""What gateway and command do alike to the sound of a speech. `tempo` needs the extra `audio`."""

MIN_SPEED, MAX_SPEED = 0.25, 4.0
"""Factors of the tempo."""
