"""Networks on a CPU as native code: made by numba when a model loads, for the CPU at hand."""
