"""When each word of a speech is spoken, its text being known."""
