"""Voices as callers name them: ids, names and aliases, and clips at an address."""
