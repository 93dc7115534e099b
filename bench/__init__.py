"""Benchmarks: commands, not tests. Each prints medians and how many runs they are of."""
