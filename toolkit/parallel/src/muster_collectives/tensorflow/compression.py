"""What gradients are cast to while they travel."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


class Compressor:
    """No compression. Travels as it is."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """The tensor that travels, and what `decompress` needs to know."""
        return tensor, tensor.dtype

    @staticmethod
    def decompress(tensor: Any, context: Any) -> Any:
        """The tensor in the type it had."""
        return tensor if tensor.dtype == context else tf.cast(tensor, context)


class HalfCompressor(Compressor):
    """Wider floats travel as fp16; beyond 65504 they become infinite on all ranks."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        wide = tensor.dtype in (tf.float32, tf.float64)
        return (tf.cast(tensor, tf.float16) if wide else tensor), tensor.dtype


class Compression:
    """The choices of `compression=`: `Compression.none` or `Compression.fp16`."""

    none = Compressor
    fp16 = HalfCompressor
