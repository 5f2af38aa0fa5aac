"""A long text as one speech: sentence by sentence, in one voice."""
