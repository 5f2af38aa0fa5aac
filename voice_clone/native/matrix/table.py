"""The table of a chain's layers: a row of whole numbers for each layer."""

# Columns.
KIND = 0
RATE = 1  # rows a frame that the layer reads
SIZE = 2  # numbers of such a row, a multiple of WIDTH; behind its channels are zeros
MEMORY = 3  # numbers that it remembers of a stream
STATE = 4  # where they are in a stream's state
PARAMETERS = 5  # offset of its float32 parameters
WEIGHTS = 6  # a product's offset of its matrix, ...
COLUMNS = 7  # its outputs, a multiple of WIDTH: one row or several
TAPS = 8
BETWEEN_TAPS = 9
INPUTS = 10  # of a tap, a multiple of WIDTH
RESIDUAL = 11  # what it does with the residual signal
ACTIVATION = 12  # what it does with what it writes
DILATION = 13  # minimal filtering: rows between taps, ...
GROUPS = 14  # groups of outputs in a frame
HEADS = 15  # attention: of queries, ...
KV_HEADS = 16
WINDOW = 17  # positions that a query sees, its own included
CHANNELS = 18  # of SIZE
FIELDS = 19

# Kinds of layers and their parameters, each [CHANNELS] unless it says otherwise.
PRODUCT = 0  # bias; with snake also alpha and 1 / beta: [COLUMNS] each
NORM = 1  # weight, eps [1]: root-mean-square norm
ATTENTION = 2  # none
GATE = 3  # none: silu of the first half of a row times the second
DEPTHWISE = 4  # a convolution's weight [TAPS, CHANNELS] and bias; a layer norm's weight, bias and eps [1]
FILTERED = 5  # a convolution by minimal filtering; parameters as PRODUCT
END = 6  # reads the result

UNTOUCHED, SET, ADDED = 0, 1, 2  # the residual signal: the product sets it; it adds to it, and passes on the sum
PLAIN, SNAKE, GELU = 0, 1, 2
