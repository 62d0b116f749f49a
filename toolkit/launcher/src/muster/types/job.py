"""A job as it was asked for: the one value that reading produces and everything else consumes."""

from __future__ import annotations

from collections.abc import Mapping

from muster.types.cluster import Cluster
from muster.types.deadlines import Deadlines
from muster.types.debug import Debug
from muster.types.distribution import Distribution
from muster.types.shown import Shown
from muster.types.values import NamedTuple

SITE = ".muster-site"  # of requirements, where the interpreter cannot be written


class Paths(NamedTuple):
    """The folders of the contract; `base` is /opt/ml unless SAGEMAKER_BASE_DIR names another."""

    base: str
    input: str
    config: str
    data: str
    code: str
    model: str
    output: str
    output_data: str
    intermediate: str
    failure: str
    success: str
    checkpoints: str

    @classmethod
    def below(cls, base: str) -> Paths:
        """The layout below `base`."""
        return cls(
            base=base,
            input=f"{base}/input",
            config=f"{base}/input/config",
            data=f"{base}/input/data",
            code=f"{base}/code",
            model=f"{base}/model",
            output=f"{base}/output",
            output_data=f"{base}/output/data",
            intermediate=f"{base}/output/intermediate",
            failure=f"{base}/output/failure",
            success=f"{base}/output/success",
            checkpoints=f"{base}/checkpoints",
        )


class Settings(NamedTuple):
    """What MUSTER_* variables set, apart from the deadlines. None: the default applies."""

    control_port: int = 7776
    store_port: int = 7777
    secret: str = ""  # MUSTER_JOB_SECRET; never reaches ranks, digests, logs or the run folder
    insecure_join: bool = False
    shown: Shown = Shown()  # MUSTER_LOG_PREFIX, MUSTER_QUIET, MUSTER_LIVE, MUSTER_SHOW_RANKS
    run_dir: str = ""  # MUSTER_RUN_DIR; "" writes the record below output/data/muster
    record: str = "tail"  # off | tail | full
    log_limit_bytes: int = 8 << 20
    install_target: str = ""  # MUSTER_INSTALL_TARGET; "" installs into the interpreter's own site
    replace_torch: bool = False  # requirements may replace the image's torch
    oversubscribe: bool = False
    mpirun: str = ""  # MUSTER_MPIRUN; "" takes the one beside the interpreter, else on PATH
    ps_framework: str = ""  # tensorflow | mxnet | pytorch; "" takes the one that is found
    ps_servers: int | None = None  # of the whole job; None: one per host
    ps_port: int | None = None  # the first port of parameter servers; None: the framework's own
    worker_port: int | None = None  # the first port of TensorFlow's workers
    isolation: str = ""  # of `muster local`, which starts this host; "" elsewhere
    debug: Debug = Debug()  # MUSTER_DEBUG, of `muster local`; without a folder
    source: str = ""  # the user's folder that `muster local` took the code from
    invented_names: bool = False  # MUSTER_INVENTED_NAMES: `muster run` named the hosts, nobody else
    tf_chief: str = "chief"  # chief | master: what TF_CONFIG calls the first worker


class Platform(NamedTuple):
    """Facts that the platform's undocumented files may hold.

    Hints: every field may be absent, none is ever required.
    """

    attempt: int | None = None  # jobRunNumber, 1 for the first
    max_runtime_s: int | None = None
    max_wait_s: int | None = None
    spot: bool | None = None
    encrypted_traffic: bool | None = None
    network_isolation: bool | None = None
    checkpoint_dir: str | None = None
    checkpoint_uri: str | None = None
    tensorboard_dir: str | None = None
    warm_pool_dir: str | None = None
    metrics: tuple[tuple[str, str], ...] = ()  # (name, regular expression)
    found: tuple[str, ...] = ()  # names of the files that were there


class Documents(NamedTuple):
    """The request's files as parsed, for the variables that hand them on."""

    resource_config: Mapping[str, object]
    input_data_config: Mapping[str, object]
    hyperparameters: Mapping[str, object]  # the user's own, decoded
    framework_parameters: Mapping[str, object]  # sagemaker_* keys outside the fixed list
    fixed_parameters: Mapping[str, object] = {}


class Job(NamedTuple):
    """One job on one host. `environ` is the environment that `train` was started with.

    `id` is "" when nothing names the job. `program` is the entry point relative to the code
    folder, `source` where the code comes from ("" for the code folder itself). `arguments` are
    the script's own, in order. `warnings` are lines for the log, found while reading. `origins`
    says where values came from ("program" -> "variable SAGEMAKER_PROGRAM"), for `muster plan`.
    `function`: `module:function` that owns the job in place of the program, or "".
    """

    id: str
    paths: Paths
    cluster: Cluster
    program: str
    source: str
    arguments: tuple[str, ...]
    distribution: Distribution
    documents: Documents
    log_level: int
    platform: Platform | None
    settings: Settings
    deadlines: Deadlines
    environ: Mapping[str, str]
    warnings: tuple[str, ...] = ()
    origins: Mapping[str, str] = {}
    function: str = ""


class Program(NamedTuple):
    """The user's program once its code lies in `code_dir`.

    `kind`: "script" (`python NAME`), "module" (`python -m NAME`), "command" (`sh NAME` for
    shell scripts, else the file itself) or "function" (`module:function` is called without
    arguments). `interpreter`: what runs a shell script, as its first line says; () for the file
    itself and for Python.
    """

    kind: str
    name: str
    code_dir: str
    arguments: tuple[str, ...]
    interpreter: tuple[str, ...] = ()


class Staged(NamedTuple):
    """What staging gives: the program, its environment, and a hash of the code folder."""

    program: Program
    python: str  # absolute path of the interpreter that runs scripts
    environ: Mapping[str, str]  # the whole environment of a rank, without rank variables
    code_hash: str
