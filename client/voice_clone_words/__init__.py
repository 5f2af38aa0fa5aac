"""The words of a speech: where they are in its text, when they are spoken, and captions of them."""
