"""nftables side of kube-proxy-nft: tables, sets, rules, elements, and the netlink that carries them.

Knows nothing of Kubernetes. What it takes are service ports (an address, a protocol, a port, its endpoints); what it
gives are operations, netlink bytes and nft text. Only `kernel` does I/O.
"""
