"""How many unmodified transformers classes are split over three stages, and proved equal.

    python -m benchmarks.modelparallel.models [NAME ...]

Each class is made with a tiny configuration, in training mode with its own dropout, and run with
labels where it takes them. Rows: split (outputs bit-equal, gradients equal), refused (with the
reason), or "does not run" where the tiny configuration does not fit the class. Ends with 1 if fewer
than all but one of those that run are split. A proof that was wrong would be seen: the stages are
run again on other data, and compared with the model.
"""

from __future__ import annotations

import inspect
import logging
import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tests.support.frameworks import library_packages

PARTS = 3
# The classes of the table: decoders, encoders, and both in one.
_CLASSES = (
    "GPT2LMHeadModel OPTForCausalLM BloomForCausalLM GPTNeoForCausalLM GPTNeoXForCausalLM "
    "GPTJForCausalLM CodeGenForCausalLM LlamaForCausalLM MistralForCausalLM MixtralForCausalLM "
    "Qwen2ForCausalLM Qwen2MoeForCausalLM Qwen3ForCausalLM Qwen3MoeForCausalLM GemmaForCausalLM "
    "Gemma2ForCausalLM Gemma3ForCausalLM PhiForCausalLM Phi3ForCausalLM FalconForCausalLM "
    "StableLmForCausalLM OlmoForCausalLM Olmo2ForCausalLM OlmoeForCausalLM CohereForCausalLM "
    "Cohere2ForCausalLM GraniteForCausalLM GraniteMoeForCausalLM Starcoder2ForCausalLM "
    "PersimmonForCausalLM NemotronForCausalLM DeepseekV2ForCausalLM DeepseekV3ForCausalLM "
    "Glm4ForCausalLM GlmForCausalLM SmolLM3ForCausalLM HeliumForCausalLM Ernie4_5ForCausalLM "
    "GptOssForCausalLM GPTBigCodeForCausalLM BioGptForCausalLM XGLMForCausalLM "
    "BertForMaskedLM RobertaForMaskedLM DistilBertForMaskedLM AlbertForMaskedLM "
    "ElectraForMaskedLM DebertaForMaskedLM DebertaV2ForMaskedLM ModernBertForMaskedLM "
    "T5ForConditionalGeneration MT5ForConditionalGeneration BartForConditionalGeneration "
    "PegasusForConditionalGeneration MarianMTModel"
)
_SMALL: dict[str, Any] = {
    "vocab_size": 500, "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 128, "head_dim": 16,
    "max_position_embeddings": 64, "n_embd": 64, "n_layer": 4, "n_head": 4, "n_positions": 64,
    "n_ctx": 64, "d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "num_layers": 4,
    "num_heads": 4, "d_kv": 16, "d_ff": 128, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128,
    "num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2, "n_routed_experts": 4,
    "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32, "n_group": 1,
    "topk_group": 1, "first_k_dense_replace": 1, "q_lora_rank": 16, "kv_lora_rank": 16,
    "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 16, "rotary_dim": 8,
    "embedding_size": 64, "ffn_dim": 128, "word_embed_proj_dim": 64, "attention_heads": 4,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 0,
    "dim": 64, "hidden_dim": 128, "n_layers": 4, "n_heads": 4,
    "attention_types": [[["global", "local"], 2]],
}  # fmt: skip


class Row(NamedTuple):
    """One class. `outcome`: "split", "refused", "does not run" or "WRONG"."""

    name: str
    outcome: str
    units: int = 0
    passed_on: tuple[int, ...] = ()
    gradients: int = 0
    equal_gradients: int = 0
    note: str = ""


def configuration(cls: Any) -> Any:
    """A tiny one of that class, with its own defaults for whatever is no size."""
    known = set(inspect.signature(cls.__init__).parameters)
    for base in cls.__mro__:
        known |= set(getattr(base, "__annotations__", {}))
    return cls(**{name: value for name, value in _SMALL.items() if name in known})


def judged(name: str, parts: int = PARTS) -> Row:
    """Probes, splits into equal cuts and proves one class; then runs the stages on other data."""
    import torch
    import transformers

    from muster_modelparallel.errors import SplitError
    from muster_modelparallel.model.probe import probe
    from muster_modelparallel.model.proof import prove
    from tests.model_parallel.support.cuts import equal_cut

    torch.manual_seed(0)
    first, second = (_arguments(torch.randint(3, 500, (4, 24))) for _ in range(2))
    try:
        cls = getattr(transformers, name)
        settings = configuration(cls.config_class)
        if not hasattr(settings, "decoder_start_token_id"):
            settings.decoder_start_token_id = 0
        model = cls(settings).train()
        if "Moe" in name or name in ("MixtralForCausalLM", "GptOssForCausalLM"):
            first["output_router_logits"] = second["output_router_logits"] = True
        model(**first)
    except Exception as error:
        return Row(name, "does not run", note=_line(error))
    try:
        probed = probe(model, (), first, parts, timing=False)
        split = probed.split(equal_cut(probed.profile, parts))
        passed_on = tuple(len(received) for received in split.received[1:])
        proof = prove(model, split, (), first, True, probed.state)
    except SplitError as error:
        return Row(name, "refused", note=_line(error))
    found = Row(
        name, "split", len(probed.profile.units), passed_on, proof.gradients, proof.equal_gradients
    )
    try:
        prove(model, split, (), second, True, probed.state)
    except SplitError as error:
        return found._replace(outcome="WRONG", note=f"on other data: {_line(error)}")
    return found


def table(rows: Sequence[Row]) -> str:
    lines = [f"{'class':34} {'':13} units  passed on   gradients"]
    for row in rows:
        figures = (
            f"{row.units:5}  {'+'.join(map(str, row.passed_on)):10}  "
            f"{row.gradients} equal, {row.equal_gradients} bit-equal"
            if row.units
            else ""
        )
        lines.append(f"{row.name:34} {row.outcome:13} {figures} {row.note}".rstrip())
    count = {word: sum(row.outcome == word for row in rows) for word in _OUTCOMES}
    lines.append(", ".join(f"{word} {found}" for word, found in count.items()))
    return "\n".join(lines)


_OUTCOMES = ("split", "refused", "WRONG", "does not run")


def _arguments(ids: Any) -> dict[str, Any]:
    return {"input_ids": ids, "labels": ids}


def _line(error: BaseException) -> str:
    text = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}: {text}"[:230]


def main(names: Sequence[str], found: Mapping[str, Row] | None = None) -> int:
    sys.path.insert(0, str(library_packages("transformers5")))
    warnings.filterwarnings("ignore")
    logging.disable(logging.CRITICAL)
    import torch
    import transformers

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    rows = []
    for name in names or _CLASSES.split():
        rows.append(judged(name))
        print(table(rows[-1:]).splitlines()[1], flush=True)
    print(table(rows).splitlines()[-1])
    ran = [row for row in rows if row.outcome != "does not run"]
    good = sum(row.outcome == "split" for row in ran)
    return int(good < len(ran) - 1 or any(row.outcome == "WRONG" for row in ran))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
