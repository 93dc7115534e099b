"""Fuzzing: what reads bytes that others wrote is given damaged ones, and must do no more than its docstring says.

`python -m tests.fuzz` (make fuzz) hunts; tests/test_fuzz.py is a short, repeatable slice of it. Real data are damaged
(`mutate`, `trees`, `attributes`), each input has limits of time and memory (`limits`), and what breaks a rule is made
small and kept (`hunt`). The rules are in the on_*.py.
"""
