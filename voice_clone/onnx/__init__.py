"""Networks as ONNX graphs: `session` runs a released one, `export` writes one. Independent of any family.

Two files, because `export` needs torch and the package onnx, which a server does without.
"""
