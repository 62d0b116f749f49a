"""What torch.compile is not to look into.

DDP's reducer is C++ and calls a group that is Python. Where it does so in a function that is being
compiled (it broadcasts its new buckets at the begin of the second step), torch would trace those
methods, which use a group as no graph can, and fail. What C++ groups do is never traced either.
"""

from __future__ import annotations

import inspect
from types import CodeType
from typing import Any

__all__ = ["leave_alone"]


def leave_alone(*classes: type) -> None:
    """Methods of these classes, and all that they call, run as they are when C++ calls them from
    compiled code. `torch.compiler.disable` says the same, and imports the compiler for seconds."""
    try:
        from torch._C._dynamo import eval_frame
    except ImportError:  # an older torch, or a Python that it does not compile for
        return
    names = ("set_code_exec_strategy", "_FrameExecStrategy", "_FrameAction")
    tell, strategy, action = (getattr(eval_frame, name, None) for name in names)
    if tell is None or strategy is None or action is None:
        return
    for each in classes:
        for code in _codes_of(each):
            tell(code, strategy(action.SKIP, action.SKIP))


def _codes_of(owner: type) -> set[CodeType]:
    found: set[CodeType] = set()
    for value in vars(owner).values():
        method: Any = value.fget if isinstance(value, property) else value
        if inspect.isfunction(method):
            found |= {method.__code__, inspect.unwrap(method).__code__}
    return found
