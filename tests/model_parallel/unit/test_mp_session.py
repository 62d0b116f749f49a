"""Which rank a process is, what `init` promises, our own variables, and objects as bytes."""

from __future__ import annotations

import dataclasses
import logging
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster_modelparallel.errors import (
    ModelParallelError,
    NotBuiltError,
    NotStartedError,
    SettingsError,
)
from muster_modelparallel.run.launched_rank import ALONE, launched_rank
from muster_modelparallel.run.own_variables import read_variables
from muster_modelparallel.settings.config import Config

TORCHRUN = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4",
            "MASTER_ADDR": "host-1", "MASTER_PORT": "1234"}  # fmt: skip
MPIRUN = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2",
          "OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}  # fmt: skip


def test_ranks_that_share_a_gpu_are_refused_by_number():
    from muster_modelparallel.run.mesh import require_own_gpus

    require_own_gpus(["GPU a", "GPU b"])
    with pytest.raises(SettingsError, match="ranks 1 and 3 are both on GPU b"):
        require_own_gpus(["GPU a", "GPU b", "GPU c", "GPU b"])


def test_a_process_without_a_launcher_is_alone():
    assert launched_rank({}) == ALONE
    assert launched_rank({"RANK": "", "WORLD_SIZE": " "}) == ALONE


def test_a_rank_of_torchrun_sits_where_it_is_told():
    me = launched_rank(TORCHRUN | MPIRUN)
    assert me == (5, 8, 1, 4, "host-1", 1234)


def test_a_rank_of_mpirun_on_one_host_needs_no_address():
    me = launched_rank(MPIRUN)
    assert me[:5] == (1, 2, 1, 2, "127.0.0.1")
    one, other = ({**MPIRUN, "PMIX_NAMESPACE": name} for name in ("job-1", "job-2"))
    assert launched_rank(one).port == launched_rank(one).port != launched_rank(other).port


def test_a_rank_of_another_mpi_is_found_too():
    me = launched_rank({"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1",
                      "MPI_LOCALNRANKS": "2", "MASTER_ADDR": "a", "MASTER_PORT": "9"})  # fmt: skip
    assert me == (3, 4, 1, 2, "a", 9)


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({**MPIRUN, "OMPI_COMM_WORLD_SIZE": "4"}, ("MASTER_ADDR is not set", "2 of the 4 ranks")),
        ({"RANK": "0"}, ("RANK is set and WORLD_SIZE is not",)),
        ({"WORLD_SIZE": "2"}, ("WORLD_SIZE is set and RANK is not",)),
        ({**TORCHRUN, "RANK": "8"}, ("RANK='8'", "from 0 to 7")),
        ({**TORCHRUN, "MASTER_PORT": "x"}, ("MASTER_PORT='x'",)),
    ],
)
def test_a_seat_that_cannot_be_is_refused_by_its_variable(environ, words):
    with pytest.raises(SettingsError) as caught:
        launched_rank(environ)
    for word in words:
        assert word in str(caught.value)


def test_a_variable_of_ours_that_is_misspelt_is_named_with_the_nearest():
    read = read_variables(
        {"MODELPARALLEL_OBJECT_TIMEOUT": "3", "MODELPARALLEL_X": "1", "OTHER": ""}
    )
    assert read.objects_timeout_s == 600
    assert "did you mean MODELPARALLEL_OBJECTS_TIMEOUT_S?" in read.notes[0]
    assert "MODELPARALLEL_X is no variable of muster_modelparallel" in read.notes[1]
    assert len(read.notes) == 2


@pytest.mark.parametrize("text", ["0", "-1", "soon", "nan", "inf"])
def test_a_limit_that_is_none_is_refused(text):
    with pytest.raises(SettingsError, match="MODELPARALLEL_OBJECTS_TIMEOUT_S"):
        read_variables({"MODELPARALLEL_OBJECTS_TIMEOUT_S": text})
    assert read_variables({"MODELPARALLEL_OBJECTS_TIMEOUT_S": " 2.5 "}).objects_timeout_s == 2.5


@pytest.mark.torch
def test_names_that_need_a_session_say_so_before_there_is_one():
    import muster_modelparallel as smp

    assert not smp.is_initialized()
    assert not smp.is_tracing()
    for call in (smp.rank, smp.dp_size, smp.get_mp_group, smp.barrier, smp.get_dp_process_group):
        with pytest.raises(NotStartedError, match=r"smp\.init"):
            call()
    with pytest.raises(NotStartedError):
        _ = smp.state.cfg


@pytest.mark.torch
def test_a_process_alone_is_every_rank_of_every_group():
    import torch.distributed as dist

    import muster_modelparallel as smp
    from tests.model_parallel.support.alone import alone

    with alone(microbatches=3) as session:
        assert smp.is_initialized() and not smp.is_tracing()
        for kind in ("mp", "pp", "tp", "dp", "rdp"):
            assert getattr(smp, f"{kind}_rank")() == 0
            assert getattr(smp, f"{kind}_size")() == 1
            assert getattr(smp, f"get_{kind}_group")() == [0]
            assert dist.get_world_size(getattr(smp, f"get_{kind}_process_group")()) == 1
        assert (smp.rank(), smp.size(), smp.local_rank(), smp.local_size()) == (0, 1, 0, 1)
        assert smp.state.cfg.microbatches == 3
        assert smp.state.model is None
        assert smp.state.module_manager.translate_functions is session.translate_functions
        value = object()
        assert smp.allgather(value, smp.WORLD) == [value]
        smp.broadcast(value, smp.WORLD)
        smp.barrier()
        with pytest.raises(SettingsError, match="the rank itself"):
            smp.send(value, 0, smp.RankType.WORLD_RANK)
    assert not smp.is_initialized()
    assert not dist.is_initialized()


@pytest.mark.torch
@pytest.mark.parametrize("horizon", [1, 3])
@pytest.mark.parametrize("key", ["offload_activations", "sm_activation_offloading"])
def test_activations_leave_a_gpu_by_either_key_and_come_back_so_far_ahead(
    key, horizon, monkeypatch, caplog
):
    """What `init` decides for a GPU, which is not used: this machine may have none."""
    import torch
    import torch.distributed as dist

    from tests.model_parallel.support.alone import alone

    with alone(**{key: True}) as session:
        assert session.offload is None
    assert "not offloaded: they are in the host's memory already" in caplog.text
    monkeypatch.setattr("muster_modelparallel.run.mesh._device", lambda me: torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: None)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        for is_on in (True, False):
            with alone(**{key: is_on, "activation_loading_horizon": horizon}) as session:
                assert (session.offload is not None) == is_on
                assert not is_on or session.offload.horizon == horizon
    finally:
        dist.destroy_process_group()


@pytest.mark.torch
def test_a_value_whose_work_is_not_built_is_refused_by_name():
    from muster_modelparallel.run.session import refuse_unbuilt

    expected = "tensor_parallel_degree is 2, which comes with a later release of muster"
    with pytest.raises(NotBuiltError, match=expected):
        refuse_unbuilt(Config(tensor_parallel_degree=2))


@pytest.mark.torch
def test_every_key_that_is_not_built_is_one_of_the_configuration():
    from muster_modelparallel.run.session import _IDLE, refuse_unbuilt

    assert set(_IDLE) <= {each.name for each in dataclasses.fields(Config)}
    refuse_unbuilt(Config())  # a configuration of nothing but defaults is built


@pytest.mark.torch
def test_notes_are_said_once(caplog, monkeypatch):
    from tests.model_parallel.support.alone import alone

    with caplog.at_level(logging.WARNING, logger="muster_modelparallel"), alone(fast_mode=True):
        pass
    assert [each for each in caplog.messages if "fast_mode" in each] == caplog.messages


def _exchange(words, size, limit_s=10.0):
    """What `size` ranks say to each other, of which only the first len(words) come."""
    import torch.distributed as dist

    from muster_modelparallel.run.job_store import JobStore

    store = dist.HashStore()

    def come(rank):
        try:
            me = ALONE._replace(rank=rank, size=size)
            return JobStore(store, me).exchange(words[rank], limit_s)
        except ModelParallelError as error:
            return str(error)

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(come, range(len(words))))


@pytest.mark.torch
@pytest.mark.parametrize("words", [("a", "a", "a"), ("a", "b", "a"), ("a",)])
def test_all_ranks_hear_all_words(words):
    assert _exchange(words, len(words)) == [words] * len(words)


@pytest.mark.torch
def test_who_does_not_come_is_named_on_all_ranks(monkeypatch):
    monkeypatch.setattr("muster_modelparallel.run.job_store._LEAVING_S", 0.2)
    for rank, text in enumerate(_exchange(("a", "a"), 3, limit_s=0.3)):
        assert text.startswith(f"rank {rank} waited for rank 2 in smp.init()")


def plain_values():
    leaves = (
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
        | st.binary()
    )  # fmt: skip
    return st.recursive(
        leaves,
        lambda inner: st.lists(inner) | st.tuples(inner) | st.dictionaries(st.text(), inner)
        | st.dictionaries(st.integers() | st.tuples(st.integers()), inner),
        max_leaves=20,
    )  # fmt: skip


@pytest.mark.torch
@given(plain_values())
def test_any_plain_value_comes_through(value):
    import torch

    from muster_modelparallel.run.encoding import decode, encode

    assert decode(encode(value), torch.device("cpu")) == value


@pytest.mark.torch
def test_only_what_weights_only_cannot_read_is_pickled():
    import torch

    from muster_modelparallel.run.encoding import decode, encode

    cpu = torch.device("cpu")
    state = torch.nn.Linear(2, 2).state_dict()
    for plain in (1, "a", [torch.ones(2)], {"a": (1, None)}, state, torch.float16, {1}):
        assert encode(plain)[0] == 0
        assert repr(decode(encode(plain), cpu)) == repr(plain)
    assert decode(encode(state), cpu)._metadata == state._metadata
    state.own = Fraction(1, 2)
    for other in (Fraction(1, 2), range(3), frozenset({1}), 1j, b""):
        assert encode(other)[0] == 1
        assert decode(encode(other), cpu) == other
    assert decode(encode(state), cpu).own == state.own
    circle: list[object] = []
    circle.append(circle)
    found = decode(encode(circle), cpu)
    assert found[0] is found
    with pytest.raises(Exception, match="pickle"):
        encode(lambda: None)


@pytest.mark.torch
def test_a_seed_says_what_is_drawn_after_init():
    import torch

    from tests.model_parallel.support.alone import alone

    def drawn(**seed):
        torch.manual_seed(1)
        with alone(**seed):
            return torch.nn.Linear(2, 2).weight.tolist()

    assert drawn(random_seed=7) == drawn(random_seed=7) != drawn(random_seed=8)
    torch.manual_seed(1)
    wanted = torch.nn.Linear(2, 2).weight.tolist()
    assert drawn() == wanted  # without it the script's own counts


@pytest.mark.torch
def test_what_has_no_effect_or_is_elsewhere_here_says_so_once(caplog, tmp_path):
    import torch

    import muster_modelparallel as smp
    from tests.model_parallel.support.alone import alone

    with caplog.at_level(logging.WARNING, logger="muster_modelparallel"), alone():
        with smp.model_creation(zero_init=True):
            net = torch.nn.Linear(2, 2)
        model = smp.DistributedModel(net, trace_memory_usage=True)
        for tag in ("one", "two"):
            smp.save_checkpoint(str(tmp_path), tag, model=model, translate_if_full=False)
        optimizer = smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1))
        for name in ("fp32_partitioned_groups_flat", "ds_param_shard_group"):
            with pytest.raises(AttributeError, match=f"no optimizer.{name}, .* use "):
                getattr(optimizer, name)
            assert not hasattr(optimizer, name)  # which is how scripts ask
    said = ["zero_init has", "trace_execution_times and trace_memory_usage have",
            "translate_if_full has"]  # fmt: skip
    assert [each.partition(" no effect: ")[0] for each in caplog.messages] == said
