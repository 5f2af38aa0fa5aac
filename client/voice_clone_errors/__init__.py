"""The kinds of errors that server, client and gateway have in common, and the form of their messages."""
