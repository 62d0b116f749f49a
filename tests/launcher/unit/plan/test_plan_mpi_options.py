"""Custom MPI options: split as a shell does, what breaks placement refused, all else handed on."""

from __future__ import annotations

import time

import pytest

from muster.plan.openmpi.options import MpiOptions, read_options
from muster.types import mpi_rules as rules
from muster.types.distribution import Mpi
from muster.types.errors import ConfigError
from muster.types.mpi_options import MAX_TEXT, MpiRequest, asked_variables, read_request

KEY = "sagemaker_mpi_custom_mpi_options"
V4, V5 = "4.1.4", "5.0.11"
BOTH = pytest.mark.parametrize("version", [V4, V5])


def request(text: str, several: bool = True) -> MpiRequest:
    return read_request(text, KEY, several=several)


def options(text: str, version: str = V4) -> MpiOptions:
    return read_options(Mpi(custom_options=text), version)


def problem(text: str) -> str:
    (one,) = request(text).problems
    assert one.where == KEY
    assert one.fix
    return one.what


@BOTH
@pytest.mark.parametrize("text", ["", "  \n\t "])
def test_without_options_nothing_is_handed_on(text: str, version: str) -> None:
    assert options(text, version) == MpiOptions()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("-x A=1 -x B='two words' -x C=a=b", (("A", "1"), ("B", "two words"), ("C", "a=b"))),
        ('-x A="1" -x A=2 -x B=', (("A", "2"), ("B", ""))),
        ("--NCCL_DEBUG=WARN -x NCCL_DEBUG=VERSION", (("NCCL_DEBUG", "VERSION"),)),
        ("-x 'J={\"a\": [1]}' -x D=$HOME", (("J", '{"a": [1]}'), ("D", "$HOME"))),
    ],
)
def test_variables_are_taken_and_never_handed_to_mpirun(
    text: str, expected: tuple[tuple[str, str], ...]
) -> None:
    found = options(text)
    assert found.variables == expected
    assert found.arguments == ()
    assert asked_variables(Mpi(custom_options=text)) == dict(expected)


@pytest.mark.promise("B46")
def test_variables_that_a_rank_gets_from_its_host_are_left_out_with_a_line() -> None:
    found = options("-x PATH -x RANK=7 -x MASTER_PORT=1 -x A=1")
    assert found.variables == (("A", "1"),)
    assert found.warnings == (
        "-x PATH carries no value: scripts have their own host's environment",
        "-x RANK is left out: muster sets it for every rank",
        "-x MASTER_PORT is left out: muster sets it for every rank",
    )


@BOTH
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("--timeout 600", "--timeout 600"),
        ("-timeout=600 --weird --new_option x", "--timeout 600 --weird --new-option x"),
        ("-mca my_own_thing 1", "--mca my_own_thing 1"),
        ("-mca pml cm -mca pml ucx", "--mca pml ucx"),
        ("-x OMPI_MCA_pml=ucx", "--mca pml ucx"),
        ("--mca rmaps_base_oversubscribe 1", "--mca rmaps_base_oversubscribe 1"),
        ("--mca hwloc_base_binding_policy none", "--bind-to none"),
        ("--mca rmaps_base_mapping_policy core", "--map-by core --rank-by slot"),
        ("--map-by core:PE=2,oversubscribe", "--map-by core:PE=2 --rank-by slot"),
        ("-map-by ppr:2:node", "--map-by ppr:2:node --rank-by slot"),
        ("-v --display map -report-bindings", "--verbose --display map --report-bindings"),
    ],
)  # fmt: skip
def test_what_breaks_nothing_is_handed_to_mpirun_with_one_line(
    text: str, words: str, version: str
) -> None:
    found = options(text, version)
    assert " ".join(found.arguments) == words
    (line,) = [one for one in found.warnings if "more than once" not in one]
    assert line.startswith(f"handed to mpirun as given: {words.partition(' ')[0]}")


def test_parameters_and_placement_of_muster_give_way() -> None:
    found = options("--mca btl_tcp_if_exclude lo -mca pml ucx --bind-to-core --map-by socket")
    assert found.names == {"btl_tcp_if_exclude", "btl_tcp_if_include", "pml", "bind-to", "map-by"}
    assert dict(found.parameters) == {
        "btl_tcp_if_exclude": "lo",
        "pml": "ucx",
        "rmaps_base_mapping_policy": "socket",
        "rmaps_base_ranking_policy": "slot",
    }


@BOTH
@pytest.mark.parametrize(
    "text",
    [
        *("--mca plm_rsh_no_tree_spawn 1", "--mca oob_tcp_if_include eth0", "--oversubscribe"),
        *("--tag-output", "--output tag", "--output-filename /tmp/x", "--quiet"),
    ],
)
def test_what_has_no_effect_here_is_left_out_with_a_line(text: str, version: str) -> None:
    found = options(text, version)
    assert found.arguments == ()
    (line,) = found.warnings
    assert text.split()[-2 if "mca" in text else 0] in line
    assert " is left out: " in line


def test_parameters_of_open_mpi_5_are_left_out_under_4() -> None:
    assert options("--prtemca a 1 --pmixmca gds hash", V4).arguments == ()
    assert len(options("--prtemca a 1 --pmixmca gds hash", V4).warnings) == 2
    assert options("-x PMIX_MCA_gds=hash", V5).arguments == ("--pmixmca", "gds", "hash")


FORBIDDEN = [
    *("plm", "plm_rsh_agent", "plm_rsh_args", "plm_ssh_agent", "ess", "PLM_RSH_AGENT"),
    *("ess_base_jobid", "orte_launch_agent", "prte_launch_agent", "orte_fork_agent"),
    *("orte_default_hostfile", "prte_default_hostfile", "orte_default_dash_host", "orte_rankfile"),
    *("mca_base_component_path", "mca_component_path", "mca_base_param_files", "mca_param_files"),
    *("mca_base_envar_file_prefix", "mca_base_override_param_file", "mca_base_env_list"),
    *("mca_base_param_file_path", "mca_base_param_file_prefix", "opal_prefix", "orte_prefix"),
    *("orte_tmpdir_base", "orte_local_tmpdir_base", "orte_no_session_dirs", "orte_top_session_dir"),
    *("prte_tmpdir_base", "prte_top_session_dir", "orte_hnp_uri", "prte_hnp_uri", "orte_server"),
    *("oob_tcp_listen_mode", "oob_tcp_static_ipv4_ports", "oob", "routed", "rml_base_verbose"),
    *("ras", "ras_slurm_x", "rmaps_rank_file_path", "rmaps_seq_file", "odls", "odls_base_sigkill"),
    *("pmix_server_uri", "ptl_tcp_if_include", "psec", "sec", "schizo", "orte_node_regex"),
    *("orte_daemonize", "orte_do_not_launch", "orte_xterm", "filem", "dfs", "orte_debugger_test"),
    *("orte_local_cpu_type", "orte_remote_tmpdir_base", "plm_rsh_agent\n", "orte_exec_agent"),
    *("rmaps", "rmaps_base_bynode", "rmaps_base_pernode", "rmaps_base_no_schedule_local"),
]  # fmt: skip


@pytest.mark.promise("S06")
@pytest.mark.parametrize("name", FORBIDDEN)
def test_parameters_that_change_who_starts_what_are_refused(name: str) -> None:
    for switch in ("-mca", "--mca", "--gmca", "--prtemca", "--pmixmca"):
        assert "is not allowed: it changes who starts what" in problem(f"{switch} '{name}' /tmp/x")
    if name.isidentifier():
        assert "is not allowed" in problem(f"-x OMPI_MCA_{name}=/tmp/x")


@pytest.mark.promise("S06")
@pytest.mark.parametrize(
    "text",
    [
        *(f"--{name} value" for name in rules.REFUSED),
        *(f"-{name} value" for name, whole in rules.ALIASES.items() if whole in rules.REFUSED),
        *("--np=4", "-hostfile f", "---hostfile f", "--HOSTFILE f", "--launch_agent /x"),
    ],
)
def test_options_that_change_hosts_agents_or_programs_are_refused(text: str) -> None:
    what = problem(f"-x A=1 {text} -x B=2")
    assert what.startswith(text.partition(" ")[0].partition("=")[0] + " is not allowed: ")


@pytest.mark.promise("S06")
def test_no_beginning_of_a_refused_option_is_handed_on() -> None:
    """mpirun 5 knows an option by any beginning that fits one alone."""
    for whole in (*rules.REFUSED, *rules.MCA, *rules.PLACING):
        for size in range(1, len(whole) + 1):
            found = request(f"--{whole[:size]} plm_rsh_agent /x")
            assert found.problems or found.options == (), whole[:size]


@pytest.mark.promise("S06")
@pytest.mark.parametrize(
    "text",
    [
        *("/bin/sh", "-- /bin/sh", "--weird 1 /bin/sh", "--timeout 30 /bin/sh", "--timeout=--np"),
        *(f"--{name} /bin/sh" for name in rules.FLAGS),
    ],
)
def test_no_word_is_handed_on_that_mpirun_would_start_as_a_program(text: str) -> None:
    assert request(text).problems


@pytest.mark.promise("S06")
@pytest.mark.parametrize(
    "name",
    [
        *("OPAL_PREFIX", "OPAL_LIBDIR", "PRTE_PREFIX", "PMIX_PREFIX", "PMIX_NAMESPACE", "PMI_RANK"),
        *("SLURM_JOB_ID", "OMPI_COMM_WORLD_RANK", "OMPI_UNIVERSE_SIZE", "MUSTER_JOB_SECRET"),
        *("MUSTER_SHIM", "HYDRA_LAUNCHER", "ORTE_SCHIZO_DETECTION"),
    ],
)
def test_variables_that_would_steer_mpirun_are_refused(name: str) -> None:
    assert "is not allowed" in problem(f"-x {name}=/tmp/x")


@pytest.mark.promise("S06")
@pytest.mark.parametrize(
    "value", ["node", "NODE:PE=2", "no", "dist:span", "seq", "rankfile:file=x", "slot:nolocal"]
)
def test_placements_that_contradict_the_rank_table_are_refused(value: str) -> None:
    assert problem(f"--map-by {value}").startswith("--map-by")
    assert problem(f"--mca rmaps_base_mapping_policy {value}").startswith("--map-by")
    assert problem("--rank-by core").startswith("--rank-by")


def test_on_one_host_by_node_is_by_slot() -> None:
    assert request("--map-by node --rank-by node", several=False) == MpiRequest()
    assert len(request("--map-by node --rank-by node").problems) == 2


@pytest.mark.promise("B31")
@pytest.mark.parametrize(
    ("text", "what"),
    [
        ('-x A="1', "cannot be split as a shell would: No closing quotation"),
        ("-x A=1\\", "cannot be split as a shell would: No escaped character"),
        ("-x A=\0", "cannot be split as a shell would: it holds a control character"),
        ("-x", "-x lacks its value"),
        ("-x 1A=2", "-x '1A': that is no name of a variable"),
        ("-x --mca", "-x lacks its value"),
        ("--mca pml", "--mca pml lacks its value"),
        ("--mca pml 'a\nb'", "--mca: 'pml a\\nb' holds a line end"),
        ("/bin/sh", "'/bin/sh' is no option: mpirun would take it for the program to start"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(text: str, what: str) -> None:
    assert request(text).problems[0].what == what
    assert request("-x A=\ud800").problems


def test_all_problems_are_told_at_once_and_not_without_end() -> None:
    assert len(request("-np 3 --hostfile f --app x -mca plm x -x OPAL_PREFIX=1").problems) == 5
    assert len(request("-np 3 " * 1000).problems) == 20


def test_the_error_names_the_hyperparameter_that_the_option_came_with() -> None:
    for option, key in (
        ("mpi", KEY),
        ("smdistributed.modelparallel", KEY),
        ("pytorchddp", "sagemaker_distributed_dataparallel_custom_mpi_options"),
        ("smdistributed.dataparallel", "sagemaker_distributed_dataparallel_custom_mpi_options"),
    ):
        with pytest.raises(ConfigError) as caught:
            read_options(Mpi(option, custom_options="-np 3"), V4)
        assert caught.value.problems[0].where == key


@pytest.mark.parametrize(
    "text",
    ["a" * (16 << 20), "-x A=1 " * (MAX_TEXT // 7), f"--mca {'launc' * 6000} 1", "'" * 32767],
)
def test_large_texts_are_read_or_refused_at_once(text: str) -> None:
    before = time.process_time()
    request(text)
    assert time.process_time() - before < 0.5
