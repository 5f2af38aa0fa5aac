"""What the project's programs share: how one runs and reads its command line, and how it writes files."""
