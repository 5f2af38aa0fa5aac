"""Networks on a CPU as native code: loops in numba's language, which numba compiles when they are first called.

Each line imports only from those above it:

    vectors       LLVM instructions on vectors
    arithmetic    sums in a fixed order, the exponential function and ELU, one norm, one query's attention
    matrix/       products of activations with a matrix in fp32, bf16, int8 or int4
    transformer/  the decoder layers of a talker, the loop of its code predictor, draws from logits
    codec/        a chain of layers over rows: a codec's encoder or decoder (not from `transformer`)

All of them use these modules: `instructions` (which of the processor's instructions they use), `compilation` (how numba
compiles and where it caches), `thread_pool` (the threads that run a function together) and `work_sharing` (how these
threads divide the work). `packed_file` keeps packed weights.
"""
