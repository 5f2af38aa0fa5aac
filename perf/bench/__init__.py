"""Measurements on a CPU, and what those on a GPU share with them."""
