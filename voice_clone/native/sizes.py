"""Sizes that the kernels and those who call them agree on. Some depend on the instructions of this process."""

from __future__ import annotations

from voice_clone.native.instructions import INSTRUCTIONS

WIDTH = INSTRUCTIONS.width  # float32 numbers in a vector
LINE = 64  # bytes of a line of the processor's cache

# Of matrices; see matrix/weights.py.
PANEL = WIDTH  # outputs of a panel
INT8_GROUP = 128  # int8 weights that share a scale
INT4_GROUP = 32  # int4 weights that share a scale; the sum of more products would not fit 16 bits

# Of the layers of a chain; see kernels/codec/product.py.
PANEL_VECTORS = 3  # vectors of outputs in a panel
PANEL_OUTPUTS = PANEL_VECTORS * WIDTH
TILE_ROWS = 4
BLOCK_TILES = 32  # tiles of a product that pass by while a part of its matrix stays in a core's cache
BLOCK_GROUPS = 128  # groups of a Winograd convolution, likewise; 64 and 256 take as long

# Phases that threads run together; see kernels/work_sharing.py.
LAYER_PHASES = 5  # of a talker's layer
CODEBOOK_PHASES = 3  # of a predictor's codebook, after those of the layers: head, draw, projection
