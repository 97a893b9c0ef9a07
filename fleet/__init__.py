"""A library of real peers."""
