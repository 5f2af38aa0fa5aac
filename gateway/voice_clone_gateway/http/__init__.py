"""What every request passes: keys, limits, errors, metrics, the connection."""
