"""What audio files say of their origin: signed manifests, unsigned statements, and what is found in a file."""
