"""Moving one artifact to many peers."""
