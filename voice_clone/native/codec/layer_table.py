"""The format of a chain's layer table: a row of whole numbers for each layer, int64 [layers, FIELDS].

The builder writes it, and the functions of all kinds of layers read it.
"""

# Columns of the table.
KIND = 0
RATE = 1  # rows that the layer reads for each frame
SIZE = 2  # numbers of such a row, a multiple of WIDTH: the channels, then zeros as padding
MEMORY = 3  # numbers of a stream's earlier rows that the layer reads again
STATE = 4  # where these numbers lie in a stream's state
PARAMETERS = 5  # offset of the layer's float32 parameters
WEIGHTS = 6  # of a product: offset of its matrix
COLUMNS = 7  # of a product: its outputs, a multiple of WIDTH; these are one row or several rows
TAPS = 8  # of a convolution
BETWEEN_TAPS = 9  # of a convolution: numbers from a tap's inputs to the next tap's
INPUTS = 10  # of a convolution: inputs of a tap, a multiple of WIDTH
RESIDUAL = 11  # of a product: what it does with the residual signal
ACTIVATION = 12  # of a product or a filter: the function that it applies to its outputs
DILATION = 13  # of a Winograd convolution: rows from a tap to the next
GROUPS = 14  # of a Winograd convolution: groups of outputs in a frame
HEADS = 15  # of attention: query heads
KV_HEADS = 16  # of attention: key-value heads
WINDOW = 17  # of attention: positions that a query attends to, its own included; 0: all of the same call
CHANNELS = 18  # of a row, without padding
ALIBI = 19  # of attention: 1 if scores fall with distance and nothing is rotated, else 0
FIELDS = 20

# Kinds of layers. Each has its parameters in this order, of shape [CHANNELS] unless another is named.
PRODUCT = 0  # bias; with SNAKE also alpha and 1 / beta; with AFFINE_SNAKE also its scale and shift; [COLUMNS] each
NORM = 1  # a root-mean-square norm: weight, eps [1]
ATTENTION = 2  # with ALIBI: how fast the scores of each head fall [HEADS]
GATE = 3  # silu(first half of a row) * second half; no parameters
DEPTHWISE = 4  # a convolution's weight [TAPS, CHANNELS] and bias; a layer norm's weight, bias and eps [1]
WINOGRAD = 5  # a convolution by Winograd's minimal filtering; parameters as of PRODUCT
FILTER = 6  # a depthwise convolution: weight [TAPS, SIZE] and bias; with SNAKE also alpha and 1 / beta; [SIZE] each
QK_NORM = 7  # a root-mean-square norm of all queries of a row, one of all keys: both weights, eps [1]
END = 8  # the last row of the table: reads the result

UNTOUCHED, SET, ADDED = 0, 1, 2  # values of RESIDUAL: not used; set to the sum; added to the sum, then set to it
PLAIN, SNAKE, GELU = 0, 1, 2  # values of ACTIVATION
AFFINE_SNAKE = 3  # likewise: Snake of outputs that are scaled and shifted, behind the residual signal
ELU = 4  # likewise
GELU_TANH = 5  # likewise: GELU in its form by the hyperbolic tangent
