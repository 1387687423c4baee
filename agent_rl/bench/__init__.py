"""Benchmarks: each file measures one thing as ratios against a named peer in the same run."""
