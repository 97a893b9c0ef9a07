"""The parts of the content swarm's scenario."""
