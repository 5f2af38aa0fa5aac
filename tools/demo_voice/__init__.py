"""The training of the checkpoint with which the demo speaks."""
