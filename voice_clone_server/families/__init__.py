"""What the programs know of model families, by their cards and repositories."""
