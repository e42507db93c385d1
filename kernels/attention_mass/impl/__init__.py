"""Implementations of the op. They never import each other."""
