"""Finds out which kube-proxy mode a node or cluster uses, and what will break with which Kubernetes version.

Gathering and judging are apart: gatherers and readers yield Evidence (`evidence`), `judge` makes Findings (`findings`)
of it, reports show them. Readers and judgement are pure.
"""
