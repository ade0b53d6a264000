"""A short training that is watched like anybody's: what clipping does, with and without a planted fault."""
