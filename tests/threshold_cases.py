"""Norms as trainings make them: autocorrelated, log-normal, with a start, explosions, drift."""

from __future__ import annotations

import math

import numpy as np


def ar1(n: int, phi: float, sigma: float, seed: int) -> np.ndarray:
    """A stationary AR(1) series with standard deviation `sigma`, shape (n,)."""
    generator = np.random.default_rng(seed)
    step = sigma * math.sqrt(1 - phi * phi)
    out = np.empty(n)
    value = sigma * generator.standard_normal()
    for i, noise in enumerate(generator.standard_normal(n)):
        value = phi * value + step * noise
        out[i] = value
    return out


def norms(n: int = 1000, phi: float = 0.6, sigma: float = 0.25, seed: int = 0) -> np.ndarray:
    """Healthy gradient norms around 1."""
    return np.exp(ar1(n, phi, sigma, seed))
