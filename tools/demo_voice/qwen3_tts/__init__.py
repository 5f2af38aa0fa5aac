"""What of the training depends on the model: its networks, its codes, its checkpoint."""
