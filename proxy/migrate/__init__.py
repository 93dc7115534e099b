"""The migration dry run: what would change on this node and cluster with kube-proxy-nft in kube-proxy's place.

    facts (gathered, or from a bundle) -> entries of both sides -> comparison, checks -> verdict, plan -> report

Gathering reads and never writes; everything after it is pure, so that a bundle gives the same report elsewhere.
"""
