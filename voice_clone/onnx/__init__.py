"""Networks as ONNX graphs: `export` writes a graph, `session` runs it on ONNX Runtime. Independent of any family."""
