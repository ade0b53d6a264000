"""Whether a logged gradient norm was taken before or after clipping, guessed from the values alone."""

from __future__ import annotations

import numpy as np

from gradclip_cli.model.run import Values

_MIN_POINTS = 20
_MIN_FRACTION = 0.03
# A clipped norm is max_norm * G / (G + 1e-6) and is printed or stored in a few digits.
_TOP = 1e-3
_BELOW = 2e-2
_CONTRAST = 5.0
# In full precision so many equal to within float32's rounding of M * G / (G + 1e-6) are no chance.
_SHARP = 2e-6
_SHARP_FRACTION = 0.01


def pile_up(values: Values) -> float | None:
    """The bound at which norms pile up, or None.

    Norms logged after clipping never exceed `max_norm` and sit on it whenever clipping acted. Norms from
    before clipping have a tail: few points near their maximum, and no more of them there than a little below.

    Decides: at least 3 % of the finite norms (and 5 of them) lie within 0.1 % of the maximum, at least 5
    times as many as lie in the 2 % below that, and not all norms do (a constant is no pile). Or at least
    1 % of them (and 5) lie within 2e-6 of it, where values are not so coarse that they coincide anyway.

    Args:
        values: Logged norms, shape (n,).
    """
    finite = values[np.isfinite(values)]
    if len(finite) < _MIN_POINTS:
        return None
    top = float(finite.max())
    if top <= 0:
        return None
    on_top = int(np.count_nonzero(finite >= top * (1 - _TOP)))
    below = int(np.count_nonzero((finite < top * (1 - _TOP)) & (finite >= top * (1 - _BELOW))))
    sharp = int(np.count_nonzero(finite >= top * (1 - _SHARP))) >= max(5, _SHARP_FRACTION * len(finite))
    blunt = on_top >= max(5, _MIN_FRACTION * len(finite)) and on_top >= _CONTRAST * below
    if on_top == len(finite) or not (sharp or blunt):
        return None
    # Values printed in so few digits that the neighbours of the maximum are 2 % away pile up everywhere.
    _, counts = np.unique(finite, return_counts=True)
    if on_top < _CONTRAST * float(np.median(counts)):
        return None
    bound = float(np.median(finite[finite >= top * (1 - _TOP)]))
    rounded = float(f"{bound:.3g}")
    return rounded if abs(rounded - bound) <= 2e-3 * bound else bound
