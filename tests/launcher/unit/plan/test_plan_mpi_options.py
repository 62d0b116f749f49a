"""The custom MPI options: split as a shell does, allowed by name, spelt for the mpirun at hand."""

from __future__ import annotations

import time

import pytest

from muster.plan.mpi_options import MpiOptions, read_options
from muster.types import mpi_rules as rules
from muster.types.distribution import Mpi
from muster.types.errors import ConfigError
from muster.types.mpi_options import MAX_TEXT, MpiRequest, asked_variables, read_request

KEY = "sagemaker_mpi_custom_mpi_options"
V4, V5 = "4.1.4", "5.0.11"
BOTH = pytest.mark.parametrize("version", [V4, V5])


def request(text: str, raw: bool = False, several: bool = True) -> MpiRequest:
    return read_request(text, KEY, raw=raw, several=several)


def options(text: str, version: str = V4) -> MpiOptions:
    return read_options(Mpi(custom_options=text), version)


def problem(text: str, raw: bool = False) -> str:
    (one,) = request(text, raw).problems
    assert one.where == KEY
    return one.what


@BOTH
@pytest.mark.parametrize("text", ["", "  \n\t "])
def test_without_options_nothing_is_handed_on(text: str, version: str) -> None:
    assert options(text, version) == MpiOptions()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("-x A=1 -x B='two words' -x C=a=b", (("A", "1"), ("B", "two words"), ("C", "a=b"))),
        ('-x A="1" -x A=2', (("A", "2"),)),
        ("-x A=", (("A", ""),)),
        ("--NCCL_DEBUG INFO", (("NCCL_DEBUG", "INFO"),)),
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


def test_a_variable_without_a_value_is_the_hosts_own_and_that_is_said() -> None:
    found = options("-x LD_LIBRARY_PATH -x PATH -x PATH")
    assert found.variables == ()
    assert found.warnings == (
        "-x LD_LIBRARY_PATH, PATH carries no value: scripts have their own host's environment",
    )


@pytest.mark.promise("B46")
@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"])
def test_who_a_rank_is_cannot_be_asked_for(name: str) -> None:
    found = options(f"-x {name}=7 -x A=1")
    assert found.variables == (("A", "1"),)
    assert found.warnings == (f"-x {name} is left out: muster sets it for every rank",)


@BOTH
@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("-mca pml ucx", "pml", "ucx"),
        ("--mca btl_vader_single_copy_mechanism none", "btl_vader_single_copy_mechanism", "none"),
        ("-gmca coll_tuned_use_dynamic_rules 1", "coll_tuned_use_dynamic_rules", "1"),
        ("--mca mpi_show_mca_params all", "mpi_show_mca_params", "all"),
        ("-x OMPI_MCA_pml=ucx", "pml", "ucx"),
        ("-mca pml cm -mca pml ucx", "pml", "ucx"),
        ("--mca opal_cuda_support 1", "opal_cuda_support", "1"),
    ],
)
def test_parameters_of_the_data_path_are_handed_on_and_ours_give_way(
    text: str, name: str, value: str, version: str
) -> None:
    found = options(text, version)
    assert found.arguments[1:] == (name, value)
    assert found.arguments[0] in ("--mca", "--gmca")
    assert found.names == {name}
    assert found.parameters == ((name, value),)


def test_an_interface_that_is_excluded_replaces_our_choice_of_one() -> None:
    assert "btl_tcp_if_include" in options("--mca btl_tcp_if_exclude lo,docker0").names


@BOTH
@pytest.mark.parametrize("name", ["oob_tcp_if_include", "oob_tcp_if_exclude"])
def test_the_link_of_the_daemons_stays_on_the_interface_of_the_job(name: str, version: str) -> None:
    found = options(f"-mca {name} eth0", version)
    assert found.arguments == ()
    assert found.warnings == (f"{name} is left out: launch daemons use the interface of the job",)


@pytest.mark.parametrize(
    ("text", "in_4", "in_5"),
    [
        ("-verbose", ["--verbose"], ["--verbose"]),
        ("-v", ["--verbose"], ["--verbose"]),
        ("-q --quiet", [], []),
        ("--allow-run-as-root", [], []),
        ("-oversubscribe --nooversubscribe --map-by :OVERSUBSCRIBE", [], []),
        (
            "--map-by core:PE=2,oversubscribe",
            ["--map-by", "core:PE=2", "--rank-by", "slot"],
            ["--map-by", "core:PE=2", "--rank-by", "slot"],
        ),
        ("--display-map", ["--display-map"], ["--display", "map"]),
        ("--display map", ["--display-map"], ["--display", "map"]),
        (
            "--display-map -report-bindings --display map,bind",
            ["--display-map", "--report-bindings"],
            ["--display", "map,bindings"],
        ),
        ("-bind-to socket", ["--bind-to", "socket"], ["--bind-to", "socket"]),
        ("--bind-to=hwt", ["--bind-to", "hwthread"], ["--bind-to", "hwt"]),
        ("-rank-by slot", [], []),
        (
            "--prtemca prte_base_help_aggregate 0",
            [],
            ["--prtemca", "prte_base_help_aggregate", "0"],
        ),
        ("--mca orte_base_help_aggregate 0", ["--mca", "orte_base_help_aggregate", "0"], []),
        ("--pmixmca gds hash", [], ["--pmixmca", "gds", "hash"]),
        ("-x PMIX_MCA_gds=hash", [], ["--pmixmca", "gds", "hash"]),
        ("--tag-output --timestamp-output --output tag", [], []),
    ],
)
def test_one_text_serves_open_mpi_4_and_5(text: str, in_4: list[str], in_5: list[str]) -> None:
    assert list(options(text, V4).arguments) == in_4
    assert list(options(text, V5).arguments) == in_5


@BOTH
@pytest.mark.parametrize("value", ["core", "socket:PE=2", "package", "ppr:2:node", ":PE=2"])
def test_however_ranks_are_mapped_they_are_numbered_host_after_host(
    value: str, version: str
) -> None:
    found = options(f"-map-by {value}", version)
    assert found.arguments[0] == "--map-by"
    assert found.arguments[2:] == ("--rank-by", "slot")
    assert found.names == {"map-by"}


def test_what_one_version_does_not_know_is_said() -> None:
    assert options("--display topo", V4).warnings == (
        "--display topo is left out: Open MPI 4.1.4 does not know it",
    )
    assert options("-mca orte_base_help_aggregate 0", V5).warnings == (
        "--mca orte_base_help_aggregate is left out: Open MPI 5.0.11 does not know it",
    )
    for text in ("--pmixmca gds hash", "-x PMIX_MCA_gds=hash"):
        assert options(text, V4).variables == (("PMIX_MCA_gds", "hash"),)
        assert options(text, V5).variables == ()


def test_that_every_rank_has_its_slot_is_said() -> None:
    assert options("--oversubscribe").warnings == (
        "--oversubscribe is left out: every rank has its slot",
    )


def test_marks_of_mpirun_on_output_are_said_to_do_nothing() -> None:
    (warning,) = options("--tag-output").warnings
    assert "MUSTER_LOG_PREFIX=1" in warning


def test_what_open_mpi_4_tells_its_daemons_of_options_is_expected_of_it() -> None:
    found = options("--report-bindings --bind-to core --use-hwthread-cpus", V4)
    expected = {
        "orte_report_bindings": "1",
        "hwloc_base_report_bindings": "1",
        "hwloc_base_binding_policy": "core",
        "hwloc_base_use_hwthreads_as_cpus": "1",
    }
    assert dict(found.parameters) == expected
    assert found.names == {"bind-to"}


FORBIDDEN = [
    *("plm", "plm_rsh_agent", "plm_rsh_args", "plm_ssh_agent", "plm_rsh_no_tree_spawn", "ess"),
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
    "PLM_RSH_AGENT",
]  # fmt: skip


@pytest.mark.promise("S06")
@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("name", FORBIDDEN)
def test_parameters_that_change_who_starts_what_are_always_refused(name: str, raw: bool) -> None:
    for switch in ("-mca", "--mca", "--gmca", "--prtemca", "--pmixmca"):
        text = f"{switch} '{name}' /tmp/x"
        assert "is not allowed: it changes who starts what" in problem(text, raw)


@pytest.mark.promise("S06")
@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize(
    "text",
    [
        *("-np 4", "--np=4", "-n 4", "-c 4", "-N 2", "--npernode 2", "-npersocket 1", "--pernode"),
        *("-H a,b", "--host a", "--hostfile f", "-machinefile f", "--default-hostfile f"),
        *("-rf f", "--rankfile f", "--add-host a", "--prefix /x", "--noprefix"),
        *("--app f", "-wdir /x", "--wd /x", "--path /x", "--preload-binary", "-s", "--tune f"),
        *("-am f", "--dvm x", "--dvm-uri x", "--ompi-server x", "--hnp x", "--personality x"),
        *("--xterm 1", "--debug", "--debugger x", "--stdin all", "--do-not-launch", "--novm"),
        *("--report-uri x", "--output-filename f", "--version", "-V", "-h", "--help", "--nolocal"),
        *("--launch-agent /x", "-d", "--bynode", "--loadbalance"),
    ],
)  # fmt: skip
def test_options_that_change_hosts_agents_or_programs_are_always_refused(
    text: str, raw: bool
) -> None:
    what = problem(f"-x A=1 {text} -x B=2", raw)
    assert what.startswith(text.partition(" ")[0].partition("=")[0] + " is not allowed: ")


@pytest.mark.promise("S06")
@pytest.mark.parametrize(
    "text",
    [
        *("--prtem plm_ssh_agent X", "--prtemc plm x", "--prte plm x", "--mc plm x", "--m plm x"),
        *("--pmixmc x y", "--gmc plm x", "--gprtem plm x", "--gpmix x y", "--om plm x"),
        *("--hostf f", "--HOSTF f", "--hos a", "--ho a", "--pref /x", "--pre /x", "--noprefi"),
        *("--launch-a /x", "--launch_agent /x", "--default-h f", "--machine f", "--rankf f"),
        *("--personali x", "--tun f", "--am f", "--add-hostf f", "--dvm-u x", "--xter 1"),
        *("--map node", "--map-b node", "--bind x", "--rank node", "--displ map", "--allow-run"),
        *("-hostf f", "---hostf f", "--hostf=f", "--prtem=plm", "--nperno 2", "--output-d f"),
        *("-Ha,b", "-np4", "-xA=1", "-qH", "-timeout 30", "---timeout 30", "--timeout=--hostfile"),
    ],
)  # fmt: skip
def test_beginnings_of_options_are_refused_under_the_raw_switch(text: str) -> None:
    """mpirun 5 knows an option by any beginning, mpirun 4 rows of letters behind one dash."""
    for raw in (False, True):
        (one,) = request(f"-x A=1 {text} -x B=2", raw).problems
        assert one.what


@pytest.mark.promise("S06")
def test_no_beginning_of_an_option_that_is_known_passes_the_raw_switch() -> None:
    for whole in (*rules.REFUSED, *rules.MCA, *rules.PLACING, "display", "allow-run-as-root"):
        for size in range(1, len(whole) + 1):
            words = request(f"--{whole[:size]} plm_rsh_agent /x", raw=True).given
            assert not [one for one in words if one.raw], whole[:size]


@pytest.mark.promise("S06")
@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize(
    "name",
    [
        *("OMPI_MCA_plm_rsh_agent", "OMPI_MCA_orte_launch_agent", "PRTE_MCA_plm_ssh_agent"),
        *("PMIX_MCA_mca_base_component_path", "PMIX_MCA_ptl_tcp_if_include", "OPAL_PREFIX"),
        *("PRTE_PREFIX", "PMIX_PREFIX", "PMIX_NAMESPACE", "PMI_RANK", "SLURM_JOB_ID"),
        *("OMPI_COMM_WORLD_RANK", "OMPI_UNIVERSE_SIZE", "MUSTER_JOB_SECRET", "MUSTER_SHIM"),
        *("OPAL_LIBDIR", "HYDRA_LAUNCHER", "ORTE_SCHIZO_DETECTION"),
    ],
)
def test_variables_that_would_steer_mpirun_are_always_refused(name: str, raw: bool) -> None:
    assert "is not allowed" in problem(f"-x {name}=/tmp/x", raw)


@pytest.mark.promise("S06")
@pytest.mark.parametrize("value", ["node", "dist:span", "seq", "rankfile:file=x", "slot:nolocal"])
def test_placements_that_contradict_the_rank_table_are_refused(value: str) -> None:
    assert problem(f"--map-by {value}").startswith("--map-by")
    assert problem(f"--rank-by {value.partition(':')[0]}9").startswith("--rank-by")


def test_on_one_host_by_node_is_by_slot() -> None:
    assert request("--map-by node --rank-by node", several=False) == MpiRequest()
    assert len(request("--map-by node --rank-by node").problems) == 2


@pytest.mark.promise("B31")
@pytest.mark.parametrize(
    ("text", "what"),
    [
        ('-x A="1', 'the quote " at position 5 is not closed'),
        ('-x A=\'1 -x B="2"', "the quote ' at position 5 is not closed"),
        ("-x A='1' -x \"B='2'", 'the quote " at position 12 is not closed'),
        ("-x A=\\\" '", "the quote ' at position 8 is not closed"),
        ("-x A=1\\", "the backslash at position 6 has nothing after it"),
        ('-x "A=\\', 'the quote " at position 3 is not closed'),
        ("-x A=\0", "'\\x00' at position 5 is not allowed in an option"),
        ("-x A=\ud800", "'\\ud800' at position 5 is not allowed in an option"),
    ],
)
def test_a_text_that_cannot_be_split_is_refused_with_the_position(text: str, what: str) -> None:
    assert problem(text) == what


@pytest.mark.promise("B31")
@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("--bind-too core", "unknown option --bind-too, did you mean --bind-to?"),
        ("-oversubscibe", "unknown option -oversubscibe, did you mean --oversubscribe?"),
        ("--nccl_debug INFO", "unknown option --nccl_debug, did you mean --NCCL_DEBUG?"),
        ("--zzz 3 4 -x A=1", "unknown option --zzz"),
        ("--oversubscribe=1", "unknown option --oversubscribe, did you mean --oversubscribe?"),
        ("--bind-to cores", "--bind-to: unknown value 'cores', did you mean core?"),
        ("--display maps", "--display: unknown value 'maps', did you mean map?"),
        ("-x", "-x lacks its value"),
        ("-x 1A=2", "-x '1A': that is not the name of a variable"),
        ("-x =2", "-x '': that is not the name of a variable"),
        ("-x --mca", "-x lacks its value"),
        ("--mca pml", "--mca pml lacks its value"),
        ("--mca", "--mca lacks its value"),
        ("--mca pml --mca", "--mca pml lacks its value"),
        ("--mca pml 'a\nb'", "--mca: 'a\\nb' holds a line end"),
        ("/bin/sh", "'/bin/sh' is not an option: mpirun would take it for the program to start"),
        ("-- /bin/sh", "'--' is not an option: mpirun would take it for the program to start"),
        ("--output file=x", "--output 'file=x' is not allowed: logs are muster's"),
        (
            "--mca my_own_thing 1",
            "--mca my_own_thing is not one of the parameters that are known to be harmless",
        ),
    ],
)
def test_what_is_not_known_is_refused_by_name(text: str, what: str) -> None:
    assert request(text).problems[0].what == what


def test_a_parameter_that_an_option_says_better_names_the_option() -> None:
    (one,) = request("--mca rmaps_base_mapping_policy core").problems
    assert one.fix == "write --map-by core"


@pytest.mark.promise("S06")
def test_the_raw_switch_lets_unknown_options_through_with_a_line_in_the_log() -> None:
    text = "--timeout 30 -x A=1 --mca my_own_thing 1 --weird"
    assert all("MUSTER_MPI_RAW_OPTIONS=1" in one.fix for one in request(text).problems)
    found = read_options(Mpi(custom_options=text), V5, raw=True)
    assert found.arguments == ("--timeout", "30", "--mca", "my_own_thing", "1", "--weird")
    assert len(found.warnings) == 3
    assert all("unchecked" in warning for warning in found.warnings)


def test_all_problems_are_told_at_once_and_not_without_end() -> None:
    assert len(request("-np 3 --hostfile f --bind-too x -mca plm x -x OPAL_PREFIX=1").problems) == 5
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
    [
        "a" * (16 << 20),
        "-x A=1 " * (MAX_TEXT // 7),
        "--" + "launc" * 6000,
        f"--mca {'launc' * 6000} 1",
        "'" * (MAX_TEXT - 1),
        "\\" * (MAX_TEXT - 1),
        "--fooo 1 " * 3000,
    ],
)
def test_large_texts_are_read_or_refused_at_once(text: str) -> None:
    before = time.process_time()
    request(text)
    assert time.process_time() - before < 0.5
