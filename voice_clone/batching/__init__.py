"""Continuous batching: streams join and leave at frame boundaries. Knows no model family."""
