"""Networks on a CPU as native code.

`kernels/` has the loops, in numba's language. A process of its own compiles them; no other imports them. Each line
imports only from those above it:

    vectors       LLVM instructions on vectors
    arithmetic    sums in a fixed order, the exponential function and ELU, one norm, one query's attention
    matrix/       products of activations with a matrix in fp32, bf16, int8 or int4
    transformer/  the decoder layers of a talker, the loop of its code predictor, draws from logits
    codec/        a chain of layers over rows: a codec's encoder or decoder (not from `transformer`)

Besides, `work_sharing` says how threads that run a kernel together divide its work, `compilation` how numba compiles.

What calls them: `kernel` (their machine code), `thread_pool`, `matrix/` (packed weights and a linear layer), `codec/`
(a chain and its builder). Both sides use `instructions`, those of the processor that they use, and `sizes`.
`packed_file` keeps machine code and packed weights for the next start, in a `cache_folder`.
"""
