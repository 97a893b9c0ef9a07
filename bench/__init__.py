"""Micro-benchmarks of the hot paths, one family a module: ``python -m bench [FAMILY]``."""
