"""What kube-proxy has left in this network namespace, in any of its modes: found, listed and removed, and nothing else.

found (gather, reads only) -> plan (pure: what goes, what stays and why) -> remove (in an order that drops no packet)
"""
