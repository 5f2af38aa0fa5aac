"""Networks as ONNX graphs: `export` writes one, `session` opens and runs one on ONNX Runtime. Knows no family."""
