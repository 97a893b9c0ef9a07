"""What must hold of a fleet whatever strikes it, by what it does: each module checks one kind of work."""
