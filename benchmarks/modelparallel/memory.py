"""Models that are not in memory: a plan of an 8B shape, and the most that a rank of 2 stages needs.

As a script, one rank of it: `memory.py plan`, `memory.py stages WHEN`.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from benchmarks.table import Bound, Row, under
from tests.model_parallel.support.ranks import RankEnd, run_ranks, words_of
from tests.support.frameworks import library_packages

GB = 1e9
_LIMIT_S = 300.0
_LAYERS, _WIDTH = 12, 3072  # 453 MB of parameters


def plan() -> Row:
    """Of Qwen3-8B's shape for 8 stages, by one process. Raises CalledProcessError."""
    packages = library_packages("transformers5")
    with tempfile.TemporaryDirectory() as folder:
        variables = {
            "MODELPARALLEL_PLAN_OUT": f"{folder}/plan.json",
            "MODELPARALLEL_RANKS": "8",
            "SM_HP_MP_PARAMETERS": '{"partitions": 8, "microbatches": 8}',
            "PYTHONPATH": str(packages),
        }
        began = time.perf_counter()
        ended = run_ranks(Path(__file__), 1, arguments=["plan"], env=variables, limit_s=_LIMIT_S,
                          fresh=True)  # fmt: skip
        seconds = time.perf_counter() - began
        if not Path(folder, "plan.json").exists():
            raise subprocess.CalledProcessError(ended[0].code, "plan", words_of(ended))
    peak = _peaks(ended)[0] / GB
    return Row(
        "plan of an 8B shape for 8 stages, not proved, one process", "s", seconds, {},
        (under(seconds, 60, "s"), under(peak, 1.5, "GB", "peak of memory")),
        f"with the start of python; {peak:.2f} GB of memory at most",
    )  # fmt: skip


def stages() -> Row:
    """The larger peak of two ranks, beside that of ranks that make the whole model at once."""
    peaks = {}
    for when in ("delayed", "at once"):
        ends = run_ranks(
            Path(__file__), 2, arguments=["stages", when], limit_s=_LIMIT_S, fresh=True,
            parameters={"pipeline_parallel_degree": 2, "skip_tracing": True},
        )  # fmt: skip
        peaks[when] = max(_peaks(ends)) / GB
    whole = _LAYERS * _WIDTH * _WIDTH * 4 / GB
    saved = peaks["at once"] - peaks["delayed"]
    return Row(
        f"memory of a rank before its first step, {whole:.2f} GB of parameters in 2 stages", "GB",
        peaks["delayed"], {"made at once": peaks["at once"]},
        (Bound("at least 0.4 of the model less", saved >= 0.4 * whole),),
        f"peaks of the process, {saved / whole:.2f} of the model less",
    )  # fmt: skip


def _peaks(ends: Sequence[RankEnd]) -> list[int]:
    """In bytes, of each rank."""
    said = [line for end in ends for line in end.out.splitlines() if line.startswith("PEAK ")]
    if len(said) != len(ends):
        raise subprocess.CalledProcessError(ends[0].code, __file__, words_of(ends))
    return [int(line.split()[1]) * 1024 for line in said]


def _rank(what: str, when: str = "") -> None:
    if what == "plan":  # it ends its process
        subprocess.run([sys.executable, __file__, "planned"], check=True)
        print(f"PEAK {resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss}", flush=True)
        return
    import torch
    from torch import nn

    import muster_modelparallel as smp

    smp.init()
    torch.manual_seed(0)
    with smp.delay_param_initialization() if when != "at once" else nullcontext():
        module = _transformers_model() if what == "planned" else nn.Sequential(
            *(nn.Linear(_WIDTH, _WIDTH) for _ in range(_LAYERS))
        )  # fmt: skip
    model = smp.DistributedModel(module)

    @smp.step
    def look(model, x):  # type: ignore[no-untyped-def]
        output = model(x, labels=x).loss if what == "planned" else model(x).sum()
        model.backward(output)

    look(model, torch.zeros(8, 4, dtype=torch.long) if what == "planned" else torch.ones(2, _WIDTH))
    print(f"PEAK {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}", flush=True)


def _transformers_model() -> Any:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=151_936, hidden_size=4096, num_hidden_layers=36, num_attention_heads=32,
            num_key_value_heads=8, head_dim=128, intermediate_size=12_288, use_cache=False,
        )
    )  # fmt: skip


if __name__ == "__main__":
    _rank(*sys.argv[1:])
