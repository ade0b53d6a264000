"""The parts of the TensorBoard reader: bytes -> records (framing, crc32c) -> numbers (event, scalars)."""
