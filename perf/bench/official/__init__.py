"""Ours against the official packages of the families."""
