"""The families' own tools, a folder for each family, and how the family of a checkpoint is recognised."""
