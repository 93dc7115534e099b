"""A small cluster made of network namespaces: the bed for tests of traffic, and for the demo."""
