"""Long texts: sentences, each spoken by itself, as one audio."""
