"""Measurements on a GPU, and what a GPU would cost, counted without one."""
