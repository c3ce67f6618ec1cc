"""Manifests, and what keeps them in step with the rest of the repository."""
