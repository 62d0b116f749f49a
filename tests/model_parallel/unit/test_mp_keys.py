"""The configuration: every key, the sources and which goes first, and what is refused."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

import pytest

from muster_modelparallel.errors import NotBuiltError, SettingsError
from muster_modelparallel.settings.config import Config, Reading, check_world, read_config
from muster_modelparallel.settings.keys import ALIASES, KEYS, Fate
from muster_modelparallel.settings.sources import MOST_DEPTH, MOST_TEXT

VARIABLE = "SM_HP_MP_PARAMETERS"
NO = Fate.NO_EFFECT
YES = Fate.HONOURED
LATER = Fate.REFUSED

# key: fate, default, another value, what `k=v` of it is, what it must not be, what is then expected
DEGREE = "an integer from 1 to 1,048,576"
FLAG = "true or false"
SIZE = "an integer of at least 0"
GOLDEN: dict[str, tuple[Fate, Any, Any, str, Any, str]] = {
    "pipeline_parallel_degree": (YES, 1, 4, "4", 0, DEGREE),
    "microbatches": (YES, 1, 8, "8", 1.5, DEGREE),
    "active_microbatches": (YES, None, 2, "2", 0, DEGREE),
    "pipeline": (YES, "interleaved", "simple", "simple", "gpipe",
                 "one of interleaved, simple, Interleaved1F1B"),
    "auto_partition": (YES, True, False, "False", 0, FLAG),
    "default_partition": (YES, 0, 0, "0", -1, SIZE),
    "optimize": (YES, "memory", "speed", "speed", "space", "one of speed, memory"),
    "memory_weight": (YES, None, 0.25, "0.25", 1.5, "a number from 0 to 1"),
    "placement_strategy": (YES, "cluster", "PTD", "PTD", "PPD",
                           "one of cluster, spread, DPT, DTP, PDT, PTD, TDP, TPD"),
    "ddp": (YES, False, True, "True", 1, FLAG),
    "overlapping_allreduce": (YES, None, False, "false", "no", FLAG),
    "tensor_parallel_degree": (YES, 1, 2, "2", True, DEGREE),
    "prescaled_batch": (YES, False, True, "TRUE", 0, FLAG),
    "shard_optimizer_state": (YES, False, True, "true", "1", FLAG),
    "sharded_data_parallel_degree": (YES, 1, 4, "4", 1 << 21, DEGREE),
    "sdp_param_persistence_threshold": (YES, 1_000_000, 0, "0", -1, SIZE),
    "sdp_reduce_bucket_size": (YES, 500_000_000, 5e8, "5e8", 0.5, SIZE),
    "sdp_gradient_clipping": (YES, 1.0, 0.5, "0.5", -0.1, "a number of at least 0"),
    "fp16": (YES, False, True, "True", "fp16", FLAG),
    "bf16": (YES, False, True, "True", "bf16", FLAG),
    "fp16_params": (YES, False, True, "True", 2, FLAG),
    "offload_activations": (YES, False, True, "True", [], FLAG),
    "activation_loading_horizon": (YES, 4, 1, "1", 0, DEGREE),
    "delayed_parameter_initialization": (YES, False, True, "True", 1, FLAG),
    "skip_tracing": (YES, False, True, "True", 1, FLAG),
    "partition_file": (YES, None, "plan.json", "plan.json", 3, "a string"),
    "load_partition": (YES, False, True, "True", "plan.json", FLAG),
    "ddp_dist_backend": (YES, "auto", "gloo", "gloo", "tcp",
                         "one of auto, nccl, smddp, gloo, mpi"),
    "hybrid_shard_degree": (YES, 0, 2, "2", -1, "an integer from 0 to 1,048,576"),
    "sm_activation_offloading": (YES, False, True, "True", 1, FLAG),
    "random_seed": (YES, None, 7, "7", -1, SIZE),
    "sdp_max_live_parameters": (NO, 1_000_000_000, 1, "1", -1, SIZE),
    "sdp_hierarchical_allgather": (NO, True, False, "False", 1, FLAG),
    "deterministic_server": (NO, False, True, "True", 1, FLAG),
    "fast_mode": (NO, False, True, "True", 1, FLAG),
    "static_mode": (NO, False, True, "True", 1, FLAG),
    "contiguous": (NO, True, False, "False", 1, FLAG),
    "horovod": (NO, False, True, "True", 1, FLAG),
    "xla": (NO, False, True, "True", 1, FLAG),
    "ddp_port": (NO, None, 5000, "5000", 70_000, "an integer from 1 to 65,535"),
    "fsdp_cache_flush_warnings": (NO, False, True, "True", 1, FLAG),
    "allow_empty_shards": (NO, False, True, "True", 1, FLAG),
    "context_parallel_degree": (LATER, 1, 2, "2", 0, DEGREE),
    "expert_parallel_degree": (LATER, 1, 2, "2", 0, DEGREE),
}  # fmt: skip
EACH = pytest.mark.parametrize("name", GOLDEN)


def read(
    variable: object = None, option: str | None = None, script: object = None, **environ: str
) -> Reading:
    if variable is not None:
        environ[VARIABLE] = variable if isinstance(variable, str) else json.dumps(variable)
    arguments = ["train.py", "--lr", "1", *(["--mp_parameters", option] if option else [])]
    return read_config(environ, arguments, script)


def problem(*sources: Any, **environ: str) -> str:
    with pytest.raises(SettingsError) as caught:
        read(*sources, **environ)
    return str(caught.value)


def test_the_table_has_these_keys_and_no_others() -> None:
    assert set(KEYS) == set(GOLDEN)
    assert ALIASES == {"partitions": "pipeline_parallel_degree"}
    honoured = {name for name, row in GOLDEN.items() if row[0] is YES}
    assert {each.name for each in fields(Config)} == honoured | {"version"}


@EACH
def test_each_key_has_its_fate_and_default(name: str) -> None:
    fate, default = GOLDEN[name][:2]
    assert (KEYS[name].fate, KEYS[name].default) == (fate, default)
    assert bool(KEYS[name].why) == (fate is not YES)
    if fate is YES and name not in ("active_microbatches", "memory_weight"):
        assert getattr(Config(), name) == default
        assert getattr(read({name: None}).config, name) == default


@EACH
def test_each_key_is_taken_from_every_source(name: str) -> None:
    fate, _, value, text, _, _ = GOLDEN[name]
    sources = (({name: value},), (None, f"{name}={text}"), (None, None, {name: value}))
    for sent in sources:
        if fate is LATER:
            with pytest.raises(NotBuiltError, match=f"{name} 2 comes with a later release"):
                read(*sent)
            assert name not in dir(read({name: 1}).config)
            continue
        reading = read(*sent)
        assert reading.given == {name: value}
        if fate is YES:
            assert getattr(reading.config, name) == value
            assert type(getattr(reading.config, name)) is type(GOLDEN[name][1] or value)
        said = [note for note in reading.notes if note.startswith(f"{name} has no effect: ")]
        assert len(said) == (fate is NO)


@EACH
def test_each_key_refuses_what_it_cannot_be(name: str) -> None:
    _, _, _, _, bad, expected = GOLDEN[name]
    text = f".{name}: expected {expected}, got {bad!r}"
    assert problem({name: bad}) == f"{VARIABLE}{text}"
    assert problem(None, None, {name: bad}) == f"init(config){text}"
    if name != "partition_file":  # which may be any text
        assert problem(None, f"{name}=?").startswith(f"--mp_parameters.{name}: expected ")


def test_defaults_follow_from_other_keys() -> None:
    plain = read().config
    assert plain == Config()
    assert (plain.active_microbatches, plain.memory_weight, plain.placement) == (3, 0.8, "DPT")
    found = read({"partitions": 4, "optimize": "speed", "placement_strategy": "spread"}).config
    assert (found.partitions, found.active_microbatches) == (4, 6)
    assert (found.memory_weight, found.placement) == (0.2, "TPD")
    found = read({"optimize": "speed", "memory_weight": 0, "placement_strategy": "TDP"}).config
    assert (found.memory_weight, found.placement) == (0.0, "TDP")
    assert type(read({"sdp_gradient_clipping": 2}).config.sdp_gradient_clipping) is float


def test_the_launcher_goes_before_the_script_and_the_script_before_the_default() -> None:
    script = {"pipeline_parallel_degree": 4, "microbatches": 8, "ddp": True}
    reading = read({"partitions": 2, "optimize": "speed"}, None, script)
    assert reading.given == {
        "pipeline_parallel_degree": 2, "microbatches": 8, "ddp": True, "optimize": "speed"
    }  # fmt: skip
    assert reading.config.pipeline_parallel_degree == 2
    assert reading.notes == (
        f"{VARIABLE} goes before init(config): it replaces pipeline_parallel_degree 4 by 2",
    )
    assert read(None, "microbatches=2", {"microbatches": 4}).config.microbatches == 2
    assert read({"ddp": None}, None, {"ddp": True}).config.ddp  # null: the launcher says nothing


def test_the_two_of_the_launcher_are_one_source_and_the_variable_counts() -> None:
    """SageMaker sends both, the argument with what Python makes of each value."""
    sent = {"active_microbatches": None, "ddp": True, "memory_weight": 0.5, "partitions": 1}
    option = "active_microbatches=None,ddp=True,memory_weight=0.5,partitions=1"
    assert read(sent, option).notes == ()
    reading = read({"microbatches": 2}, "microbatches=4")
    assert reading.config.microbatches == 2
    assert reading.notes == (
        f"--mp_parameters says microbatches=4, {VARIABLE} 2: the variable counts",
    )
    # a comma within a value is no news where the variable has it whole
    assert read({"partition_file": "a,b"}, "partition_file=a,b").config.partition_file == "a,b"


@pytest.mark.parametrize(
    "arguments",
    [
        ["--mp_parameters", "microbatches=4, ddp=true"],
        ["--mp_parameters=microbatches=4,ddp=True"],
        ["--mp-parameters", '{"microbatches": 4, "ddp": true}'],
        ["--mp_parameters", "microbatches=2", "--mp_parameters", "microbatches=4,ddp=True"],
    ],
)
def test_the_command_line_is_read_as_argparse_would(arguments: list[str]) -> None:
    config = read_config({}, arguments, None).config
    assert (config.microbatches, config.ddp) == (4, True)


@pytest.mark.parametrize("arguments", [["--mp_parameters"], ["--mp_parameters", ""], []])
def test_an_option_without_text_sends_nothing(arguments: list[str]) -> None:
    assert read_config({VARIABLE: " "}, arguments, None).given == {}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{'partitions': 2}", "expected a JSON object, got \"{'partitions': 2}\""),
        ("partitions=2", "expected a JSON object, got 'partitions=2'"),
        ("[1]", "expected a JSON object, got [1]"),
        ('{"partitions": 2, "partitions": 4}', "'partitions' is given twice"),
        ('{"memory_weight": NaN}', "NaN is not JSON"),
        ('{"memory_weight": 1e999}', ".memory_weight: expected a number from 0 to 1, got inf"),
        ('{"a": ' * 200_000, "nested too deeply"),
        ('{"a": ' + "[" * 20 + "]" * 20 + "}", f"values are nested more than {MOST_DEPTH} deep"),
        ('{"a": "%s"}' % ("x" * MOST_TEXT), "expected at most 1,048,576 characters, got 1,048,585"),
    ],
    ids=lambda text: text[:20],
)
def test_text_that_is_no_json_object_is_refused(text: str, expected: str) -> None:
    said = problem(text)
    assert said.startswith(VARIABLE)
    assert expected in said or "characters" in said
    assert len(said) < 400


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("microbatches", "--mp_parameters: expected key=value, got 'microbatches'"),
        ("microbatches=2,", "--mp_parameters: expected key=value, got ''"),
        ("=2", "--mp_parameters: expected key=value, got '=2'"),
        ("ddp=True,ddp=True", "--mp_parameters: ddp is given twice"),
        ("microbatches=1.5", "--mp_parameters.microbatches: expected " + DEGREE + ", got 1.5"),
        ("memory_weight=nan", "--mp_parameters.memory_weight: expected a number"),
        ('{"microbatches": "2"}', "--mp_parameters.microbatches: expected " + DEGREE + ", got '2'"),
        ("x" * (MOST_TEXT + 1), "--mp_parameters: expected at most 1,048,576 characters"),
    ],
    ids=lambda text: text[:20],
)
def test_a_text_of_the_command_line_that_means_nothing_is_refused(text: str, expected: str) -> None:
    assert problem(None, text).startswith(expected)


@pytest.mark.parametrize("given", [[], "microbatches=2", 7, {1: 2}])
def test_what_is_no_dictionary_is_no_config(given: object) -> None:
    assert "init(config): expected a dictionary, got" in problem(None, None, given)


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        ({"fp16": True, "bf16": True}, "fp16 and bf16 are both true; choose one"),
        ({"fp16_params": True, "bf16": True}, "fp16_params and bf16 are both true; choose one"),
        ({"partitions": 2, "pipeline_parallel_degree": 4}, "both name one thing; send one of them"),
        ({"default_partition": 1}, "default_partition 1 is none of the 1 partitions"),
        ({"partitions": 2, "default_partition": 2}, "none of the 2 partitions, which begin at 0"),
        (
            {"sharded_data_parallel_degree": 2, "shard_optimizer_state": True},
            "sharded_data_parallel_degree 2 shards the optimizer's state already",
        ),
        ({"hybrid_shard_degree": 2, "context_parallel_degree": 4}, "4 is more than hybrid_shard"),
        ({"random_seed": 0, "ddp": True}, "random_seed is a key of version 2 of the library"),
    ],
)
def test_keys_that_exclude_each_other_are_refused(sent: dict[str, Any], expected: str) -> None:
    assert expected in problem(sent)
    assert problem(sent).startswith(f"{VARIABLE}: ")
    assert problem(None, None, sent).startswith("init(config): ")


def test_keys_that_exclude_each_other_are_found_across_sources() -> None:
    said = problem({"fp16": True}, None, {"bf16": True})
    assert said == "mp_parameters: fp16 and bf16 are both true; choose one"
    same = read({"partitions": 2, "pipeline_parallel_degree": 2}, None, {"microbatches": 2})
    assert same.notes == ()


def test_all_wrong_values_are_named_at_once() -> None:
    said = problem({"ddp": 1}, None, {"microbatches": "x", "optimize": "y" * 100})
    assert said.startswith("3 problems:\n  SM_HP_MP_PARAMETERS.ddp: expected true or false, got 1")
    assert "init(config).microbatches" in said
    assert len(said) < 400


def test_an_unknown_key_is_a_note_with_the_nearest_name() -> None:
    reading = read({"partitons": 2, "something_else": [1]})
    assert reading.config == Config()
    assert reading.notes == (
        "unknown key 'partitons' of mp_parameters, did you mean 'partitions'?",
        "unknown key 'something_else' of mp_parameters has no effect",
    )


def test_a_backend_that_torch_does_not_have_is_a_note() -> None:
    """It is the documented default of the library, so it is no error."""
    notes = read_config({}, [], {"ddp_dist_backend": "mpi"}).notes
    assert len(notes) == 1 and "'mpi' means gloo, and NCCL on GPUs" in notes[0]
    assert not read_config({}, [], {"ddp_dist_backend": "gloo"}).notes


def test_variables_of_the_library_without_effect_are_named_once() -> None:
    reading = read(SMP_NCCL_THROTTLE_LIMIT="8", SMP_A="1", SM_HOSTS="[]")
    assert reading.notes == ("variables without effect: SMP_A, SMP_NCCL_THROTTLE_LIMIT",)


def test_a_pipeline_that_cannot_be_full_is_a_note() -> None:
    (note,) = read({"partitions": 4, "microbatches": 2}).notes
    assert note == (
        "microbatches 2 are fewer than the 4 stages of the pipeline, which stand idle 60 % of the "
        "time"
    )


@pytest.mark.parametrize(
    ("config", "size", "expected"),
    [
        (Config(pipeline_parallel_degree=3), 4, "pipeline 3 x tensor 1 = 3 does not divide the"),
        (Config(pipeline_parallel_degree=2, tensor_parallel_degree=4), 4, "= 8 does not divide"),
        (Config(), 2, "the world size 2 is more than pipeline 1 x tensor 1 = 1, and ddp is not"),
        (Config(pipeline_parallel_degree=2), 4, 'set "ddp": true to train 2 replicas'),
        (
            Config(ddp=True, sharded_data_parallel_degree=3),
            8,
            "sharded_data_parallel_degree 3 does not divide the data-parallel size 8",
        ),
        (
            Config(ddp=True, pipeline_parallel_degree=2, sharded_data_parallel_degree=8),
            8,
            "does not divide the data-parallel size 4; use a divisor of 4",
        ),
        (
            Config(version=2, hybrid_shard_degree=4, tensor_parallel_degree=4),
            8,
            "hybrid_shard_degree 4 does not divide the data-parallel size 2",
        ),
    ],
)
def test_ranks_that_cannot_be_cut_into_groups_are_refused(
    config: Config, size: int, expected: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        check_world(config, size)
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("config", "size"),
    [
        (Config(), 1),
        (Config(ddp=True), 1),
        (Config(pipeline_parallel_degree=4), 4),
        (Config(pipeline_parallel_degree=2, tensor_parallel_degree=2), 4),
        (Config(ddp=True, sharded_data_parallel_degree=4), 8),
        (Config(version=2, hybrid_shard_degree=4), 8),
        (Config(version=2), 8),
    ],
)
def test_degrees_that_fit_are_taken(config: Config, size: int) -> None:
    check_world(config, size)


def test_stages_in_turns_need_microbatches_for_each_turn() -> None:
    asked = {"pipeline": "Interleaved1F1B", "partitions": 4, "microbatches": 6}
    with pytest.raises(SettingsError, match=r"microbatches 6 are no multiple of 4 .*use 8 "):
        read_config({}, [], asked)
    assert read_config({}, [], {**asked, "microbatches": 8}).config.pipeline == "Interleaved1F1B"
