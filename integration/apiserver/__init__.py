"""A stand-in for the API server, for tests, benchmarks and by hand: see `server`."""

from integration.apiserver.server import FakeApi, Object, Request, Store, error_line, load, status

__all__ = ["FakeApi", "Object", "Request", "Store", "error_line", "load", "status"]
