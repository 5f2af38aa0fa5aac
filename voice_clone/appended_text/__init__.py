"""Text that comes piece by piece: its tokens, equal to those of the whole text. Needs no torch."""
