"""A mark in the sound that says that it is synthetic: put into streams, and found in files. docs/provenance.md."""
