"""nftables side of kube-proxy-nft: tables, sets, rules, elements, and the netlink that carries them.

Knows nothing of Kubernetes. What it takes are service ports (an address, a protocol, a port, its endpoints); what it
gives are operations, netlink bytes and nft text. I/O is left to the few modules that open a netlink socket: kernel,
kernel_watch, lookout, table_reader, foreign, trace_socket.
"""
