"""Where speech comes from: signed manifests, written and read."""
