"""peerfleet."""
