"""Every key of the configuration: what a value must be, its default, and what becomes of it.

Source: the public documentation of the library's versions 1 and 2. The launcher has a table of its
own, to refuse a value before a job starts; tests/model_parallel/unit/test_mp_both_tables.py holds
the two together.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, NamedTuple

MOST = 1 << 53  # what JSON carries exactly
_DEGREES = (1, 1 << 20)
_ANY = (0, MOST)


class KeyKind(str, Enum):
    """What a value of a key is."""

    FLAG = "flag"
    INTEGER = "integer"
    NUMBER = "number"
    TEXT = "text"


class Fate(str, Enum):
    """What becomes of a key that was sent. REFUSED: only its default can be used."""

    HONOURED = "honoured"
    NO_EFFECT = "no effect"
    REFUSED = "refused"


class Key(NamedTuple):
    """One key.

    `bounds`: of a number, both included. `words`: of a text, () for any. `default` None: it follows
    from other keys, or nobody asked. `why`: of a key without effect, or refused; a clause that
    follows its name. `version`: 1 or 2, the version of the library that alone has it, 0 for both.
    """

    name: str
    kind: KeyKind
    default: object
    bounds: tuple[int, int] = _ANY
    words: tuple[str, ...] = ()
    alias: str = ""
    fate: Fate = Fate.HONOURED
    why: str = ""
    version: int = 1

    @property
    def expected(self) -> str:
        """What a value must be, in words."""
        if self.kind is KeyKind.FLAG:
            return "true or false"
        if self.kind is KeyKind.TEXT:
            return f"one of {', '.join(self.words)}" if self.words else "a string"
        low, high = self.bounds
        name = "an integer" if self.kind is KeyKind.INTEGER else "a number"
        return f"{name} " + (f"of at least {low}" if high >= MOST else f"from {low} to {high:,}")

    def fits(self, value: object) -> bool:
        """Whether it can be used. 1 is no flag, and true no number; 5e8 is an integer, as JSON
        writes it."""
        if self.kind is KeyKind.FLAG:
            return isinstance(value, bool)
        if self.kind is KeyKind.TEXT:
            return isinstance(value, str) and (not self.words or value in self.words)
        if not isinstance(value, int | float) or isinstance(value, bool):
            return False
        if self.kind is KeyKind.INTEGER and value % 1 != 0:
            return False
        return self.bounds[0] <= value <= self.bounds[1]

    def typed(self, value: Any) -> Any:
        """A value that fits, as the number that it is."""
        if value is None or self.kind not in (KeyKind.INTEGER, KeyKind.NUMBER):
            return value
        return int(value) if self.kind is KeyKind.INTEGER else float(value)

    def from_text(self, text: str) -> object:
        """The value that a text `k=v` means; the text itself where it means none, which then does
        not fit. `None` and `null` stand for the default."""
        if text in ("None", "null"):
            return None
        if self.kind is KeyKind.FLAG:
            return {"true": True, "false": False}.get(text.lower(), text)
        if self.kind is KeyKind.TEXT:
            return text
        try:
            return int(text)
        except ValueError:
            pass
        try:
            return float(text)
        except ValueError:
            return text


def _flag(name: str, default: bool | None = False, **more: Any) -> Key:
    return Key(name, KeyKind.FLAG, default)._replace(**more)


def _degree(name: str, default: int | None = 1, **more: Any) -> Key:
    return Key(name, KeyKind.INTEGER, default, _DEGREES)._replace(**more)


def _size(name: str, default: int | None, **more: Any) -> Key:
    return Key(name, KeyKind.INTEGER, default)._replace(**more)


def _word(name: str, default: str, *words: str) -> Key:
    return Key(name, KeyKind.TEXT, default, words=words)


def _idle(key: Key, why: str) -> Key:
    return key._replace(fate=Fate.NO_EFFECT, why=why)


def _refused(key: Key, why: str) -> Key:
    return key._replace(fate=Fate.REFUSED, why=why)


PLACEMENTS = ("DPT", "DTP", "PDT", "PTD", "TDP", "TPD")
_STATIC = "what comes when is fixed before the first step"
_TENSORFLOW = "it is TensorFlow's"
_FSDP = "torch's FSDP decides that itself"

IN_TURNS = "Interleaved1F1B"  # torch's name; SMP does not have it

_ROWS = (
    _degree("pipeline_parallel_degree", alias="partitions"),
    _degree("microbatches"),
    _degree("active_microbatches", None),  # pipeline_parallel_degree + 2
    _word("pipeline", "interleaved", "interleaved", "simple", IN_TURNS),
    _flag("auto_partition", True),
    _size("default_partition", 0),
    _word("optimize", "memory", "speed", "memory"),
    Key("memory_weight", KeyKind.NUMBER, None, (0, 1)),  # 0.2 for speed, 0.8 for memory
    _word("placement_strategy", "cluster", "cluster", "spread", *PLACEMENTS),
    _flag("ddp"),
    _flag("overlapping_allreduce", None),  # DistributedModel's argument
    _degree("tensor_parallel_degree", version=0),
    _flag("prescaled_batch"),
    _flag("shard_optimizer_state"),
    _degree("sharded_data_parallel_degree"),
    _size("sdp_param_persistence_threshold", 1_000_000),
    _size("sdp_reduce_bucket_size", 500_000_000),
    Key("sdp_gradient_clipping", KeyKind.NUMBER, 1.0),
    _flag("fp16"),
    _flag("bf16"),
    _flag("fp16_params"),
    _flag("offload_activations"),
    _degree("activation_loading_horizon", 4, version=0),
    _flag("delayed_parameter_initialization"),
    _flag("skip_tracing"),
    Key("partition_file", KeyKind.TEXT, None),
    _flag("load_partition"),
    _word("ddp_dist_backend", "auto", "auto", "nccl", "smddp", "gloo", "mpi"),
    _size("hybrid_shard_degree", 0, bounds=(0, 1 << 20), version=2),
    _flag("sm_activation_offloading", version=2),
    _size("random_seed", None, version=2),
    _idle(_size("sdp_max_live_parameters", 1_000_000_000), _FSDP),
    _idle(_flag("sdp_hierarchical_allgather", True), _FSDP),
    _idle(_flag("deterministic_server"), _STATIC),
    _idle(_flag("fast_mode"), _STATIC),
    _idle(_flag("static_mode"), _STATIC),
    _idle(_flag("contiguous", True), _TENSORFLOW),
    _idle(_flag("horovod"), _TENSORFLOW),
    _idle(_flag("xla"), _TENSORFLOW),
    _idle(_size("ddp_port", None, bounds=(1, 65_535)), "the launcher chooses the port"),
    _idle(_flag("fsdp_cache_flush_warnings", version=2), "no cache is flushed"),
    _idle(_flag("allow_empty_shards", version=2), "torch's FSDP allows them"),
    _refused(_degree("context_parallel_degree", version=2), "sequences are not divided yet"),
    _refused(_degree("expert_parallel_degree", version=2), "experts are not divided yet"),
)
KEYS: dict[str, Key] = {key.name: key for key in _ROWS}
ALIASES: dict[str, str] = {key.alias: key.name for key in _ROWS if key.alias}
NAMES = (*ALIASES, *KEYS)


def key_of(name: str) -> Key | None:
    """The key of that name or alias."""
    return KEYS.get(ALIASES.get(name, name))
