"""The commands of `voice-clone`. Each module has those on one subject: what they do, and their arguments."""
