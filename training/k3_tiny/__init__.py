"""Trains `k3-tiny`, the small K3 that stepfuse bundles, from text on any Python machine."""
