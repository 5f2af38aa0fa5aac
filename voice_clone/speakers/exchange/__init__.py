"""Voices that come and go in bundles."""
