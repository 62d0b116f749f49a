"""How hyperparameters reach the script: each form once, several in a job where none stands out."""

from __future__ import annotations

from tests.launcher.conformance.scenario import ABSENT, Scenario
from tests.launcher.conformance.scenarios.meant import accepted, differs, tied
from tests.launcher.conformance.scenarios.parts import script, sdk, wire


def _row(name: str, /, **values: str) -> Scenario:
    return Scenario(f"argument: {name}", wire(**values), script())


_SCENARIOS = (
    Scenario("argument: none", wire(), script()),
    _row(
        "numbers",
        lr="1e-4",
        zip="007",
        steps="1_000",
        delta='"-0.5"',
        x="1",
        seed="123456789012345678901234567890",
    ),
    _row(
        "booleans, null, list and object",
        amp="true",
        bf16="false",
        raw="True",
        resume="null",
        layers='[1, "x"]',
        options='{"k":{"z":1},"j":[1,2]}',
    ),
    _row(
        "texts",
        lr='"1e-3"',
        y='"two words"',
        tag='""',
        note="",
        lines='"line 1\\n\\tline 2"',
        json='"[1, 2"',
        raw="{broken",
        shell='"a\'b \\"c\\" $HOME `id`; rm -rf *"',
        text="$(id) 'x'",
    ),
    _row("unicode", name='"Zürich 🚀 \\u05d0"', raw="naïve"),
    _row("not a number", limit="NaN", top="Infinity"),
    _row("more digits than a double", seed="12345678901234567890.123"),
    _row("order of names", b="1", a="2", B="3", _c="4"),
    Scenario(
        "argument: dash and dot in names",
        {**sdk(), "learning-rate": "0.1", "model.depth": "3", "--odd": "1"},
        script(),
    ),
    Scenario(
        "argument: values that are not strings",
        {**sdk(), "epochs": 3, "amp": True, "layers": [1, 2], "nothing": None},
        script(),
    ),
    Scenario(
        "argument: mp_parameters",
        sdk(mp_parameters={"partitions": 2, "ddp": True}),
        script(),
    ),
    Scenario(
        "argument: keys of the platform stay away from the script",
        {
            **sdk(
                sagemaker_job_name="job-7",
                sagemaker_region="eu-west-1",
                sagemaker_enable_cloudwatch_metrics=False,
                sagemaker_container_log_level=20,
                sagemaker_new_key="a",
                sagemaker_training_compiler_enabled=False,
            ),
            "_tuning_objective_metric": "acc",
            "lr": "0.1",
        },
        script(),
    ),
    Scenario(
        "argument: more than the kernel takes",
        {**sdk(), **{f"p{place:02d}": "x" * 2400 for place in range(60)}},
        script(),
    ),
)
_RAW = "what a double cannot hold reaches the script as it was written"
_BOTH = "a spelling that a shell can read, beside the incumbent's"
_MEANT = {
    "argument: not a number": differs(
        _RAW,
        ("script.argv", '*"nan", "--top", "inf"]', '*"NaN", "--top", "Infinity"]'),
        ("env.SM_USER_ARGS", '*"nan","--top","inf"]', '*"NaN","--top","Infinity"]'),
        ("env.SM_HPS", '{"limit":NaN,"top":Infinity}', '{"limit":"NaN","top":"Infinity"}'),
        ("env.SM_TRAINING_ENV.hyperparameters", "*NaN*", '*"NaN"*'),
    ),
    "argument: more digits than a double": differs(
        _RAW,
        ("script.argv", "*1.2345678901234567e+19*", "*12345678901234567890.123*"),
        ("env.SM_USER_ARGS", "*1.2345678901234567e+19*", "*12345678901234567890.123*"),
        ("env.SM_HPS", "*1.2345678901234567e+19*", '*"12345678901234567890.123"*'),
        ("env.SM_HP_SEED", "1.2345678901234567e+19", "12345678901234567890.123"),
        ("env.SM_TRAINING_ENV.hyperparameters", "*e+19*", '*"12345678901234567890.123"*'),
    ),
    "argument: order of names": differs(
        "names that collide in upper case keep their own variable",
        ("env.SM_HP_b", ABSENT, "1"),
    ),
    "argument: dash and dot in names": differs(
        _BOTH,
        ("env.SM_HP_LEARNING_RATE", ABSENT, "0.1"),
        ("env.SM_HP_MODEL_DEPTH", ABSENT, "3"),
        ("env.SM_HP___ODD", ABSENT, "1"),
    ),
    "argument: mp_parameters": differs(
        "true; the incumbent asks before it has set the variable",
        ("env.SM_TRAINING_ENV.is_modelparallel_enabled", "null", "true"),
    ),
    "argument: more than the kernel takes": (
        *accepted("oversized values go to files", exit_code="7"),
    ),
}  # fmt: skip

SCENARIOS = tied(_SCENARIOS, _MEANT)
