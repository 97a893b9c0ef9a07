"""Our own code with one line changed, to see that exploring seeds finds it."""
