"""A stand-in for the API server, for tests, benchmarks and by hand: see `server`."""
