"""The names that version 1 of the library documents and scripts cannot do without, each with the
test that proves its effect: without that effect the test fails.

A method is written with its class, an argument that matters by itself in brackets. Tests are those
of the folder above; `FILE::TEST[CASE]` where one case proves it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

_KINDS = ("mp", "pp", "tp", "dp", "rdp")
_SESSION = "unit/test_mp_session.py"
_STEP = "unit/test_mp_step.py"
_OUTPUTS = "unit/test_mp_outputs.py"
_MODEL = "unit/test_mp_model.py"
_OPTIMIZER = "unit/test_mp_optimizer.py"
_STAGES = "unit/test_mp_partitions.py"
_CALLS = "unit/test_mp_checkpoint_calls.py"
_NAMES = "unit/test_mp_names.py"
_OBJECTS = "ranks/test_mp_objects.py"
_FILES = "ranks/test_mp_checkpoints.py"


def _all(names: Iterable[str], file: str, test: str) -> dict[str, str]:
    return dict.fromkeys(names, f"{file}::{test}")


def _replicas(check: str) -> str:
    return f"ranks/test_mp_data_parallel.py::test_replicas[gloo-2-{check}]"


def _cut(check: str) -> str:
    return f"steps/test_mp_steps.py::test_steps_of_two_ranks[ranks_keys-{check}]"


_BY_PLACEMENT = "test_groups_follow_the_placement"
_OPTIONS_OF_SAVING = "test_arguments_of_save_checkpoint_count"
_OPTIONS_OF_RESUMING = "test_arguments_of_resume_from_checkpoint_count"
_LOCAL = "test_what_is_local_is_all_of_the_module"

P0: Mapping[str, str] = {
    "__version__": f"{_NAMES}::test_the_version_is_of_the_last_documented_api_and_muster",
    "init": f"{_OBJECTS}::test_objects_arrive_in_order_whatever_they_are[gloo]",
    "is_initialized": f"{_SESSION}::test_a_process_alone_is_every_rank_of_every_group",
    "is_tracing": _cut("a_model_is_told_while_it_is_traced"),
    # the step function, and what it gives back
    "step": f"{_STEP}::test_the_body_runs_once_for_each_microbatch_in_order",
    **_all(
        ("step(non_split_inputs)", "step(input_split_axes)"),
        _STEP,
        "test_options_of_the_decorator_count",
    ),
    "step(detach_outputs)": f"{_STEP}::test_outputs_are_detached_unless_one_says_otherwise",
    "smp_slice": "unit/test_mp_slicing.py::test_objects_cut_themselves_by_smp_slice",
    "StepOutput": f"{_OUTPUTS}::test_in_containers_too",
    **_all(
        [
            f"StepOutput.{each}"
            for each in ("reduce_mean", "reduce_sum", "concat", "stack")
        ],
        _OUTPUTS,
        "test_mean_sum_stack_and_concat",
    ),
    "StepOutput.outputs": f"{_OUTPUTS}::test_tensors_become_step_outputs_by_microbatch",
    "StepOutput.detach": f"{_OUTPUTS}::test_detach_leaves_the_graph",
    "numbers as lists": f"{_OUTPUTS}::test_python_numbers_become_plain_lists_and_none_stays_none",
    # the model
    "DistributedModel": _replicas("five_steps_equal_one_process"),
    "model.DistributedModel": f"{_NAMES}::test_a_model_is_wrapped_under_its_longer_name",
    **_all(
        [
            f"DistributedModel({each})"
            for each in ("trace_device", "trace_execution_times", "trace_memory_usage")
        ],
        _MODEL,
        "test_arguments_about_tracing_are_checked_and_taken",
    ),
    "DistributedModel(overlapping_allreduce)": _replicas(
        "buckets_are_on_their_way_during_backward_only_with_overlapping"
    ),
    "DistributedModel(backward_passes_per_step)": _replicas(
        "averaging_waits_for_so_many_passes"
    ),
    "DistributedModel(average_grads_across_microbatches)": (
        f"{_MODEL}::test_gradients_are_summed_where_the_loss_sums"
    ),
    "DistributedModel(bucket_cap_mb)": _replicas(
        "buckets_are_on_their_way_during_backward_only_with_overlapping"
    ),
    "DistributedModel(broadcast_buffers)": _replicas(
        "buffers_are_the_first_ranks_when_a_step_begins"
    ),
    "DistributedModel(gradient_as_bucket_view)": _replicas(
        "with_views_gradients_lie_in_the_buckets"
    ),
    "DistributedModel.backward": (
        f"{_MODEL}::test_backward_takes_several_tensors_and_their_gradients"
    ),
    **_all(("DistributedModel.partitioned", "DistributedModel.get_module"), _MODEL, _LOCAL),
    **{
        f"DistributedModel.local_{each}": _cut("what_is_local_is_what_this_rank_has")
        for each in (
            "parameters", "named_parameters", "buffers", "named_buffers", "modules",
            "named_modules",
        )
    },
    **_all(
        ("DistributedModel.state_dict", "DistributedModel.local_state_dict"),
        _MODEL,
        "test_state_has_the_names_of_the_module",
    ),
    "DistributedModel.load_state_dict": f"{_MODEL}::test_state_of_any_kind_is_loaded",
    "DistributedModel.register_post_partition_hook": (
        f"{_MODEL}::test_post_partition_hooks_run_once_before_the_first_forward"
    ),
    "DistributedModel.cpu": (
        f"{_MODEL}::test_training_and_evaluation_reach_the_module_and_so_does_cpu"
    ),
    # the optimizer
    "DistributedOptimizer": f"{_MODEL}::test_a_wrapped_optimizer_made_before_the_model_trains_it",
    "DistributedOptimizer(static_loss_scale)": (
        f"{_OPTIMIZER}::test_a_static_scale_keeps_small_gradients"
    ),
    **_all(
        (
            "DistributedOptimizer(dynamic_loss_scale)", "DistributedOptimizer(dynamic_loss_args)",
            "DistributedOptimizer.overflow",
        ),
        _OPTIMIZER,
        "test_gradients_that_overflow_skip_the_step_and_lower_a_dynamic_scale",
    ),
    **_all(
        (
            "DistributedOptimizer.state_dict", "DistributedOptimizer.local_state_dict",
            "DistributedOptimizer.local_state_dict(gather_if_shard)",
            "DistributedOptimizer.load_state_dict",
        ),
        _OPTIMIZER,
        "test_state_is_the_wrapped_one_and_the_local_one_is_marked",
    ),
    "DistributedOptimizer.clip_master_grads": (
        f"{_OPTIMIZER}::test_gradients_are_clipped_to_a_norm"
    ),
    # ranks and groups
    **_all(
        (
            "rank", "size", *(f"{kind}_{what}" for kind in _KINDS for what in ("rank", "size")),
            "get_world_process_group",
            *(f"get_{kind}_{what}" for kind in _KINDS for what in ("group", "process_group")),
            "CommGroup", "RankType",
            "WORLD", *(f"{kind.upper()}_GROUP" for kind in _KINDS),
        ),
        _OBJECTS,
        _BY_PLACEMENT,
    ),
    **_all(
        ("local_rank", "local_size"), _OBJECTS, "test_ranks_of_a_host_are_numbered_by_the_launcher"
    ),
    # objects
    **_all(
        ("broadcast", "recv_from", "send", "allgather"),
        _OBJECTS,
        "test_objects_arrive_in_order_whatever_they_are[gloo]",
    ),
    **_all(
        ("barrier", "dp_barrier", "mp_barrier"),
        _OBJECTS,
        "test_a_barrier_waits_for_its_group_and_for_no_other_rank",
    ),
    # partitions by hand
    "partition": f"{_STAGES}::test_the_innermost_context_counts",
    "set_partition": f"{_STAGES}::test_set_partition_takes_the_module_with_all_in_it",
    "set_tensor_parallelism": (
        f"{_STAGES}::test_tensor_parallelism_has_nothing_to_do_on_one_rank_and_says_so_on_more"
    ),
    # checkpoints
    **_all(("save", "load", "save(v3)"), _FILES, "test_save_and_load_keep_a_part_for_each_place"),
    "save_checkpoint": f"{_FILES}::test_the_files_are_those_of_the_documented_layout",
    **_all(
        [
            f"save_checkpoint({each})"
            for each in (
                "partial", "model", "optimizer", "user_content", "translate_if_full",
                "num_kept_partial_checkpoints",
            )
        ],
        _CALLS,
        _OPTIONS_OF_SAVING,
    ),
    "resume_from_checkpoint": (
        f"{_FILES}::test_a_resumed_job_takes_the_same_steps_to_the_bit[1-partial]"
    ),
    **_all(
        [
            f"resume_from_checkpoint({each})"
            for each in (
                "tag", "partial", "strict", "load_optimizer", "load_sharded_optimizer_state",
                "translate_function",
            )
        ],
        _CALLS,
        _OPTIONS_OF_RESUMING,
    ),
    # activations
    **_all(
        (
            "set_activation_checkpointing", "set_activation_checkpointing(strategy)",
            "set_activation_checkpointing(pack_args_as_tuple)",
            "patches.checkpoint.checkpoint_sequential",
        ),
        _STAGES,
        "test_a_checkpointed_sequence_gives_the_same_gradients",
    ),
    "set_activation_checkpointing(preserve_rng_state)": (
        f"{_STAGES}::test_dropout_drops_the_same_again_where_the_random_state_is_kept"
    ),
    "patches.checkpoint.checkpoint": f"{_STAGES}::test_one_call_of_a_module_is_checkpointed",
    # what scripts and transformers read
    "state.cfg": f"{_SESSION}::test_a_process_alone_is_every_rank_of_every_group",
    "state.model": f"{_MODEL}::test_the_state_shows_what_was_wrapped",
    "state.module_manager.translate_functions": (
        f"{_SESSION}::test_a_process_alone_is_every_rank_of_every_group"
    ),
}  # fmt: skip
