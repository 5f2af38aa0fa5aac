"""Speeches as their callers see them, of texts that are whole or still written."""
