"""How gradients are stored, and how their bytes become float64.

A float32, bfloat16, float16 or float8 number is a float64 exactly, so nothing is lost before the sum.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Dtype:
    """How one element is stored (little-endian).

    Attributes:
        name: As PyTorch calls it.
        num_bytes: Of one element.
        kind: "other" are integers and booleans, which are no gradients.
        largest: The largest finite value; 0 for "other".
        smallest: The smallest value above zero; 0 for "other".
    """

    name: str
    num_bytes: int
    kind: Literal["real", "complex", "other"] = "other"
    largest: float = 0.0
    smallest: float = 0.0


DTYPES: dict[str, Dtype] = {
    d.name: d
    for d in (
        Dtype("float64", 8, "real", float(np.finfo(np.float64).max), 2.0**-1074),
        Dtype("float32", 4, "real", float(np.finfo(np.float32).max), 2.0**-149),
        Dtype("float16", 2, "real", 65504.0, 2.0**-24),
        Dtype("bfloat16", 2, "real", (2 - 2.0**-7) * 2.0**127, 2.0**-133),
        # Micikevicius et al., "FP8 Formats for Deep Learning", 2022; the variants without a negative zero: ONNX, "Float stored in 8 bits".
        Dtype("float8_e4m3fn", 1, "real", 448.0, 2.0**-9),
        Dtype("float8_e5m2", 1, "real", 57344.0, 2.0**-16),
        Dtype("float8_e4m3fnuz", 1, "real", 240.0, 2.0**-10),
        Dtype("float8_e5m2fnuz", 1, "real", 57344.0, 2.0**-17),
        Dtype("complex64", 8, "complex", float(np.finfo(np.float32).max), 2.0**-149),
        Dtype("complex128", 16, "complex", float(np.finfo(np.float64).max), 2.0**-1074),
        *(Dtype(f"{sign}int{bits}", bits // 8) for bits in (8, 16, 32, 64) for sign in ("", "u")),
        Dtype("bool", 1),
    )
}
"""By name. What is not here (complex32, float8_e8m0fnu, types of less than a byte, quantized ones) is not read."""


class Decoder:
    """Turns stored elements into float64, chunk by chunk, in buffers that are used again.

    Args:
        num_elements: The most elements of a chunk.
    """

    def __init__(self, num_elements: int) -> None:
        self._bits = np.empty(num_elements, np.uint32)
        self._halves = np.empty(num_elements, np.uint16)

    def __call__(self, raw: npt.NDArray[np.uint8], dtype: Dtype, out: Floats) -> None:
        """Write the values of `raw` to `out`, exactly; of a complex number its absolute value, of a float16 perhaps without the sign.

        Args:
            raw: The bytes, shape (n * dtype.num_bytes,).
            out: Shape (n,).
        """
        n = len(out)
        match dtype.name:
            case "float64":
                out[:] = raw.view("<f8")
            case "float32":
                out[:] = raw.view("<f4")
            case "bfloat16":
                bits = self._bits[:n]
                bits[:] = raw.view("<u2")
                np.left_shift(bits, 16, out=bits)
                out[:] = bits.view(np.float32)
            case "float16":
                self._half(raw.view("<u2"), out)
            case "complex64" | "complex128":
                # Halves that are not finite: hypot(inf, nan) is inf, as the absolute value of torch.
                parts = raw.view("<f4" if dtype.name == "complex64" else "<f8").reshape(n, 2)
                np.hypot(parts[:, 0], parts[:, 1], out=out, dtype=np.float64)
            case _:
                np.take(_table(dtype.name), raw, out=out)

    def _half(self, raw: npt.NDArray[np.uint16], out: Floats) -> None:
        """As `raw.view(float16)` is converted, several times as fast."""
        n = len(out)
        halves, bits = self._halves[:n], self._bits[:n]
        np.bitwise_and(raw, 0x7FFF, out=halves)  # without the sign
        if halves.max(initial=0) >= 0x7C00:
            out[:] = raw.view("<f2")  # an inf or nan among them
            return
        bits[:] = halves
        np.left_shift(bits, 13, out=bits)
        # The exponent of a float16 read as that of a float32 is 2**112 times too small; that factor is exact.
        numbers = bits.view(np.float32)
        np.multiply(numbers, np.float32(2.0**112), out=numbers)
        out[:] = numbers


@cache
def _table(name: str) -> Floats:
    """The 256 values of an 8-bit type, by its bits."""
    exponent_bits = int(name[len("float8_e")])
    mantissa_bits = 7 - exponent_bits
    unsigned_zero = name.endswith("uz")
    bias = 2 ** (exponent_bits - 1) - (0 if unsigned_zero else 1)
    bits = np.arange(256)
    exponent, mantissa = (bits & 0x7F) >> mantissa_bits, bits & (2**mantissa_bits - 1)
    values: Floats = np.where(
        exponent == 0,
        np.ldexp(mantissa.astype(np.float64), 1 - bias - mantissa_bits),
        np.ldexp(1 + mantissa / 2**mantissa_bits, exponent - bias),
    )
    if unsigned_zero:
        values[0x80] = np.nan
    elif name == "float8_e4m3fn":
        values[[0x7F, 0xFF]] = np.nan
    else:
        values[(exponent == 31) & (mantissa == 0)] = np.inf
        values[(exponent == 31) & (mantissa > 0)] = np.nan
    values[0x80:] *= -1
    return values
