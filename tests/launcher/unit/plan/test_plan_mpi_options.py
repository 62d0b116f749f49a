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
        ("-timeout=600 --weird --new_option", "--timeout 600 --weird --new-option"),
        ("-mca my_own_thing 1", "--mca my_own_thing 1"),
        ("-mca pml cm -mca pml ucx", "--mca pml ucx"),
        ("-x OMPI_MCA_pml=ucx", "--mca pml ucx"),
        ("--mca rmaps_base_oversubscribe 1", "--mca rmaps_base_oversubscribe 1"),
        ("--mca hwloc_base_binding_policy none", "--bind-to none"),
        ("--mca rmaps_base_mapping_policy core", "--map-by core --rank-by slot"),
        ("--map-by core:PE=2,oversubscribe", "--map-by core:PE=2 --rank-by slot"),
        ("-map-by ppr:2:node", "--map-by ppr:2:node --rank-by slot"),
        ("-MCA HWLOC_x -foo", "--mca hwloc_x -foo"),
        ("-mapby core", "--map-by core --rank-by slot"),
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


@pytest.mark.parametrize(
    ("text", "in_4", "in_5"),
    [
        ("--display map", "--display-map", "--display map"),
        ("--display-map", "--display-map", "--display map"),
        ("--display-topo -v", "--display-topo --verbose", "--display topo --verbose"),
        (
            "--display-map -report-bindings -v --display MAP,bind,allocation",
            "--verbose --display-map --report-bindings --display-allocation",
            "--verbose --display map,bindings,allocation",
        ),
        ("--bind-to package", "--bind-to socket", "--bind-to package"),
        ("--bind-to=HWT:overload", "--bind-to hwthread:overload", "--bind-to HWT:overload"),
        (
            "--map-by package:PE=2",
            "--map-by socket:PE=2 --rank-by slot",
            "--map-by package:PE=2 --rank-by slot",
        ),
        (
            "--mca rmaps_base_schedule_policy package",
            "--map-by socket --rank-by slot",
            "--map-by package --rank-by slot",
        ),
        ("--prtemca a 1 --pmixmca gds hash", "", "--prtemca a 1 --pmixmca gds hash"),
        ("-x PMIX_MCA_gds=hash", "", "--pmixmca gds hash"),
    ],
)
def test_one_text_serves_open_mpi_4_and_5(text: str, in_4: str, in_5: str) -> None:
    assert " ".join(options(text, V4).arguments) == in_4
    assert " ".join(options(text, V5).arguments) == in_5


def test_open_mpi_4_hands_on_what_its_own_words_say() -> None:
    text = "--display map,bind --bind-to package --map-by package"
    assert dict(options(text, V4).parameters) == {
        "rmaps_base_display_map": "1",
        "orte_display_map": "1",
        "orte_report_bindings": "1",
        "hwloc_base_report_bindings": "1",
        "hwloc_base_binding_policy": "socket",
        "rmaps_base_mapping_policy": "socket",
        "rmaps_base_ranking_policy": "slot",
    }


def test_what_open_mpi_4_does_not_know_is_left_out_with_a_line() -> None:
    line = "is left out: Open MPI 4.1.4 does not know it"
    assert options("--display cpus", V4).warnings == (f"--display cpus {line}",)
    assert options("--prtemca a 1", V4).warnings == (f"--prtemca a {line}",)


def test_parameters_of_pmix_reach_scripts_as_variables_under_open_mpi_4() -> None:
    for text in ("--pmixmca GDS hash", "-x PMIX_MCA_gds=hash"):
        assert options(text, V4) == MpiOptions(variables=(("PMIX_MCA_gds", "hash"),))
        assert options(text, V5).variables == ()


def test_a_parameter_without_a_value_is_left_out_as_any_variable_is() -> None:
    for name in ("OMPI_MCA_pml", "PRTE_MCA_a", "PMIX_MCA_gds"):
        (line,) = options(f"-x {name}").warnings
        assert line.startswith(f"-x {name} carries no value")
    assert "is not allowed" in problem("-x OMPI_MCA_plm")
    assert "is not allowed" in problem("-x OMPI_MCA_orte_plm")


def test_a_parameter_is_the_same_by_its_name_with_the_project() -> None:
    """Open MPI reads PROJECT_FRAMEWORK_... before the short name."""
    assert options("--mca ompi_pml ucx").names == {"ompi_pml", "pml"}
    assert "btl_tcp_if_include" in options("--mca opal_btl_tcp_if_exclude lo").names
    assert options("--mca opal_hwloc_base_binding_policy core").arguments == ("--bind-to", "core")
    assert problem("--mca orte_rmaps_base_mapping_policy node").startswith("--map-by 'node'")
    for name in ("orte_oob_tcp_if_include", "orte_plm_rsh_no_tree_spawn"):
        (line,) = options(f"-x OMPI_MCA_{name}=1").warnings
        assert line.startswith(f"{name} is left out: ")


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
    *("rmaps_ppr_pattern", "rmaps_base_pattern", "rmaps_base_bycore", "orte_max_vm_size"),
    *("ras_base_no_vm", "orte_no_vm", "rmaps_base_novm", "orte_xml_file", "if_do_not_resolve"),
    *("opal_if_do_not_resolve", "orte_plm", "orte_plm_rsh_agent", "prte_ras", "ompi_rmaps_seq_x"),
    *("ORTE_odls_base_x", "oshmem_sec", "pmix_psec", "orte_rmaps_base_bynode", "opal_schizo"),
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
        *("--tmpdir /x", "--report-events uri", "--stop-in-app", "--file f", "--fwd-environment"),
        *("--fwd-environment /bin/sh", "--output-proctable", "--output-proctable /bin/sh"),
        *("--prepend-env A:1", "--append-env A:1", "--unset-env A"),
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
        *("--weird /bin/sh", "--weird=1", "--bind-too core", "--timeou", "--timeout", "--cpu-set"),
        *(f"--{name} /bin/sh" for name in rules.FLAGS),
        *("--display-comm /bin/sh", "--display-comm-finalize /bin/sh", "--soft /bin/sh"),
        *("--parseable /bin/sh", "--no-aggregate-help /bin/sh", "--hetero-nodes /bin/sh"),
        *("--parsable /bin/sh", "--no-app-prefix /bin/sh", "--set-sid /bin/sh"),
    ],
)
def test_no_word_is_handed_on_that_mpirun_would_start_as_a_program(text: str) -> None:
    assert request(text).problems


def test_an_option_of_unknown_form_may_stand_alone_only() -> None:
    assert options("--weird -x A=1").arguments == ("--weird",)
    (one,) = request("--weird 'two words' 3 -x A=1").problems
    assert one.what == "--weird 'two words' is not allowed: muster does not know its values"
    assert problem("--timeout -v") == "--timeout lacks its value"


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
    assert time.process_time() - before < 10
