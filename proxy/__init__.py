"""Kubernetes side of kube-proxy-nft: objects in, service ports out. Calls `rules`, never the other way."""

__version__ = "0.1.0"
