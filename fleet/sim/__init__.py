"""The ports, simulated: one process, virtual time, one seed that decides everything."""
