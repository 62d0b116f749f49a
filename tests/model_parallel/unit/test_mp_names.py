"""The names of smdistributed.modelparallel.torch: all there, and those of the native API."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import muster_modelparallel
import smdistributed.modelparallel
import smdistributed.modelparallel.torch as smp
from tests.model_parallel.support.alone import alone
from tests.model_parallel.support.names import P0

pytestmark = pytest.mark.torch

FOLDER = Path(__file__).parents[1]
ELSEWHERE = {"smp_slice"}  # a method of a script's own objects
SCRIPTS = {  # of the tests whose cases are checks in a script of ranks
    "test_replicas": "ranks/ranks_data_parallel.py",
    "test_steps_of_two_ranks": "steps/ranks_keys.py",
}
FAMILIES = ["bert", "gpt2", "gptj", "gptneo", "gptneox", "roberta"]
IMPORTED = [
    ("torch.amp", "GradScaler"),
    ("torch.model", "DistributedModel"),
    ("torch.nn", "FusedLayerNorm"),
    ("torch.nn", "DistributedLinear"),
    ("torch.nn", "DistributedEmbedding"),
    ("torch.nn", "DistributedTransformerLMHead"),
    ("torch.nn", "DistributedTransformer"),
    ("torch.nn", "DistributedTransformerLayer"),
    ("torch.nn", "DistributedAttentionLayer"),
    ("torch.nn", "DistributedTransformerOutputLayer"),
    ("torch.nn", "FlashAttentionLayer"),
    ("torch.nn.huggingface.roberta", "translate_state_dict_to_smdistributed"),
    ("torch.nn.huggingface.gptj", "translate_hf_gptj_state_dict_to_smdistributed_gptj"),
    ("torch.optimizers", "FusedLAMB"),
    ("torch.optimizers", "FusedLamb"),
    ("torch.optimizers", "FusedNovoGrad"),
    ("torch.patches.checkpoint", "checkpoint"),
    ("torch.patches.checkpoint", "checkpoint_sequential"),
    ("torch.utils", "rmsg"),
    ("test.torch.utils", "dump_model"),
    ("test.torch.utils", "verify"),
]


@pytest.mark.parametrize("name", muster_modelparallel.__all__)
def test_a_documented_name_is_that_of_the_native_api(name):
    if name != "__version__":
        assert getattr(smp, name) is getattr(muster_modelparallel, name)
    assert name in smp.__all__


def test_every_name_that_scripts_cannot_do_without_has_a_test_of_its_effect():
    listed = {name for name in P0 if name.isidentifier() and name not in ELSEWHERE}
    assert listed <= set(smp.__all__)
    for name, test in P0.items():
        file, _, function = test.partition("::")
        text = (FOLDER / file).read_text()
        assert f"\ndef {function.partition('[')[0]}(" in text, f"{name}: there is no {test}"
        for cases, script in SCRIPTS.items():
            check = re.fullmatch(rf"{cases}\[.*-(\w+)\]", function)
            checks = (FOLDER / script).read_text()
            assert not check or f"\ndef {check[1]}(" in checks, f"{name}: there is no {check[1]}"


def test_a_model_is_wrapped_under_its_longer_name():
    import torch

    with alone() as session:
        model = smp.model.DistributedModel(torch.nn.Linear(1, 1))
        assert isinstance(model, smp.DistributedModel) and session.model is model


@pytest.mark.parametrize(("module", "name"), IMPORTED)
def test_a_name_that_scripts_import_at_the_top_is_there(module, name):
    found = importlib.import_module(f"smdistributed.modelparallel.{module}")
    assert callable(getattr(found, name))


@pytest.mark.parametrize("family", FAMILIES)
def test_state_dictionaries_of_a_family_are_those_of_hugging_face(family):
    found = getattr(smp.nn.huggingface, family)
    state = {"weight": 1}
    with alone() as session:
        assert getattr(found, f"translate_state_dict_to_hf_{family}")(state, max_seq_len=8) == state
        read = getattr(found, f"translate_hf_state_dict_to_smdistributed_{family}")
        assert read(state) == state
        session.config = type(session.config)(tensor_parallel_degree=2)
        with pytest.raises(muster_modelparallel.NotBuiltError):
            read(state)


def test_what_scripts_use_in_place_of_apex_is_real():
    import torch

    assert smp.nn.FusedLayerNorm is torch.nn.LayerNorm is smp.nn.LayerNorm
    for kind in (smp.optimizers.FusedLAMB, smp.optimizers.FusedNovoGrad):
        assert issubclass(kind, torch.optim.Optimizer)
    assert issubclass(smp.amp.GradScaler, torch.amp.GradScaler)
    with alone():
        assert smp.utils.rmsg("hello") == "[rank 0] hello"


@pytest.mark.parametrize("name", [each for each in smp.nn.__all__ if each.startswith("D")])
def test_a_module_that_is_not_built_says_so_when_it_is_made(name):
    import torch

    kind = getattr(smp.nn, name)
    assert not isinstance(torch.nn.Linear(1, 1), kind)

    class Own(kind):
        pass

    for each in (kind, Own):
        with pytest.raises(muster_modelparallel.NotBuiltError, match=rf"smp\.nn\.{name} \("):
            each(1, 2)


def test_a_function_that_is_not_built_says_so_when_it_is_used():
    from smdistributed.modelparallel.test.torch.utils import dump_model, verify

    for use in (dump_model, verify, smp.tp_register, smp.tp_register_with_module):
        with pytest.raises(muster_modelparallel.NotBuiltError, match="later release of muster"):
            use(1, name=2)


def test_the_version_is_of_the_last_documented_api_and_muster():
    version = pytest.importorskip("packaging.version")
    found = version.parse(smdistributed.modelparallel.__version__)
    assert found >= version.parse("1.10")
    assert str(found) == f"1.15.0+muster.{muster_modelparallel.__version__}"


def test_tensorflow_is_refused_in_one_sentence():
    with pytest.raises(ImportError, match=r"PyTorch names of smdistributed\.modelparallel"):
        importlib.import_module("smdistributed.modelparallel.tensorflow")


def test_smdistributed_stays_open_to_other_packages():
    import smdistributed

    assert getattr(smdistributed, "__file__", None) is None
    assert importlib.import_module("smdistributed.dataparallel")


def test_importing_the_native_package_imports_no_torch():
    code = "import muster_modelparallel, sys; assert 'torch' not in sys.modules; " \
           "muster_modelparallel.SettingsError; assert 'torch' not in sys.modules"  # fmt: skip
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_what_takes_seconds_to_import_waits_until_it_is_used():
    """Beyond torch itself: DTensor brings sympy, and takes longer than torch."""
    code = """
        import sys, torch
        before = set(sys.modules)
        import muster_modelparallel as smp
        from muster_modelparallel.run.pipeline import steps
        for name in smp.__all__:
            getattr(smp, name)
        torchs = ("tensor", "fsdp", "checkpoint", "pipelining")
        dear = {"sympy", "transformers", "torch._dynamo"}
        dear |= {f"torch.distributed.{one}" for one in torchs}
        print(sorted(dear & sys.modules.keys() - before))
    """
    words = [sys.executable, "-c", textwrap.dedent(code)]
    ended = subprocess.run(words, check=True, timeout=120, capture_output=True, text=True)
    assert ended.stdout == "[]\n"


def test_every_native_name_has_a_home_and_no_other_has():
    homes = [name for names in muster_modelparallel._HOMES.values() for name in names]
    assert len(homes) == len(set(homes))
    for name in muster_modelparallel.__all__:
        assert getattr(muster_modelparallel, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = muster_modelparallel.nothing
