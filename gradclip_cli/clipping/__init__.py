"""Gradients as they are stored, and what clipping does to them."""
