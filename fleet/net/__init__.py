"""Links, bindings and sessions."""
