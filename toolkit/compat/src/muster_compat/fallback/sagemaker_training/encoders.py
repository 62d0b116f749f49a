"""Arrays to and from the texts and bytes of a content type. Needs numpy when used."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

from . import content_types, errors


def array_to_npy(array_like: Any) -> bytes:
    import numpy

    buffer = io.BytesIO()
    numpy.save(buffer, array_like, allow_pickle=False)
    return buffer.getvalue()


def npy_to_numpy(npy_array: bytes) -> Any:
    """Objects are refused: to load them would run what the bytes say."""
    import numpy

    return numpy.load(io.BytesIO(npy_array), allow_pickle=False)


def array_to_json(array_like: Any) -> str:
    def plain(value: Any) -> Any:
        if hasattr(value, "tolist"):
            return value.tolist()
        raise TypeError(f"{type(value).__name__} cannot be written as JSON")

    return json.dumps(array_like, default=plain)


def json_to_numpy(string_like: str | bytes, dtype: Any = None) -> Any:
    import numpy

    return numpy.array(json.loads(string_like), dtype=dtype)


def array_to_csv(array_like: Any) -> str:
    import numpy

    buffer = io.StringIO()
    numpy.savetxt(buffer, array_like, delimiter=",", fmt="%s")
    return buffer.getvalue()


def csv_to_numpy(string_like: str | bytes, dtype: Any = None) -> Any:
    import numpy

    text = string_like.decode() if isinstance(string_like, bytes) else string_like
    return numpy.genfromtxt(io.StringIO(text), dtype=dtype, delimiter=",")


_ENCODERS: dict[str, Callable[[Any], Any]] = {
    content_types.NPY: array_to_npy,
    content_types.CSV: array_to_csv,
    content_types.JSON: array_to_json,
}
_DECODERS: dict[str, Callable[[Any], Any]] = {
    content_types.NPY: npy_to_numpy,
    content_types.CSV: csv_to_numpy,
    content_types.JSON: json_to_numpy,
}


def encode(array_like: Any, content_type: str) -> Any:
    """Raises UnsupportedFormatError."""
    return _by_type(_ENCODERS, content_type)(array_like)


def decode(obj: Any, content_type: str) -> Any:
    """Raises UnsupportedFormatError."""
    return _by_type(_DECODERS, content_type)(obj)


def _by_type(table: dict[str, Callable[[Any], Any]], content_type: str) -> Callable[[Any], Any]:
    if content_type not in table:
        raise errors.UnsupportedFormatError(content_type)
    return table[content_type]
