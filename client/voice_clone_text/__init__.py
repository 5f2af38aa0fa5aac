"""Texts before they are spoken: pure work on characters, which needs neither numpy nor Triton."""
