"""Networks as ONNX graphs: `export` writes a graph, `session` describes and runs it. Independent of any family.

Two files, because `export` needs the package onnx, which a server does without.
"""
