"""Who a peer is, and how a channel proves it."""
