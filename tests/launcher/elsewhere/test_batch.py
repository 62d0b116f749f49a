"""`muster submit --on batch`, and AWS Batch as moto has it."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import boto3
import pytest
from moto.server import ThreadedMotoServer

from muster.arguments import UsageError
from muster.submit import batch
from muster.submit.values import RUNNING, JobState, Submission, Submitted
from tests.launcher.elsewhere.submitting import Said, request_of, submit

SIZE = ("--set", "queue=gpus", "--set", "vcpus=8", "--set", "memory=60000")
WORDS = ("--on", "batch", "--image", "train:1", "--source-dir", "image:/opt/ml/code", *SIZE)


class Account:
    """An account with one queue. `environ`: of its user."""

    def __init__(self, url: str, folder: Path) -> None:
        keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
        self.environ = {"AWS_ENDPOINT_URL": url, "AWS_REGION": "us-west-2", "TOKEN": "t0k", **keys}
        self.folder = folder
        about = {"endpoint_url": url, "region_name": "us-west-2"}
        about |= {"aws_access_key_id": "test", "aws_secret_access_key": "test"}
        self.batch, self._about = boto3.client("batch", **about), about
        role = boto3.client("iam", **about).create_role(
            RoleName="batch", AssumeRolePolicyDocument="{}"
        )
        made = self.batch.create_compute_environment(
            computeEnvironmentName="environment",
            type="UNMANAGED",
            state="ENABLED",
            serviceRole=role["Role"]["Arn"],
        )
        order = [{"order": 1, "computeEnvironment": made["computeEnvironmentArn"]}]
        self.batch.create_job_queue(
            jobQueueName="gpus", state="ENABLED", priority=1, computeEnvironmentOrder=order
        )

    def asked(self, *words: str) -> Said:
        return submit(self.folder, *words, environ=self.environ)

    def definitions(self) -> list[dict[str, Any]]:
        return list(self.batch.describe_job_definitions()["jobDefinitions"])


@pytest.fixture
def account(tmp_path: Path) -> Iterator[Account]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        url = "http://{}:{}".format(*server.get_host_and_port())
        urllib.request.urlopen(f"{url}/moto-api/reset", b"").close()
        settings = json.dumps({"batch": {"use_docker": False}}).encode()
        urllib.request.urlopen(f"{url}/moto-api/config", settings).close()
        yield Account(url, tmp_path)
    finally:
        server.stop()


def requests(folder: Path, *words: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """What `--dry-run` prints."""
    said = submit(folder, *WORDS, "--dry-run", *words)
    assert said.code == 0, said.err
    found = json.loads(said.out)
    return found["RegisterJobDefinition"], found["SubmitJob"]


def test_the_requests_are_ones_of_batch(tmp_path: Path) -> None:
    """By the service's own model, which knows no other fields; without a secret."""
    from botocore.session import get_session
    from botocore.validate import validate_parameters

    more = (
        "--hosts",
        "4",
        "--retries",
        "2",
        "--set",
        "gpus=8",
        "--env",
        "A=hidden",
        "--grace",
        "90",
    )
    more += ("--set", 'container.ulimits[0]={"name":"memlock","softLimit":-1,"hardLimit":-1}')
    more += ("--set", "job.timeout.attemptDurationSeconds=3600", "--set", "secret=arn:aws:s")
    definition, job = requests(tmp_path, *more)
    model = get_session().get_service_model("batch")
    shape = model.operation_model("RegisterJobDefinition").input_shape
    validate_parameters(definition, shape)
    validate_parameters(
        {**job, "jobDefinition": "x"}, model.operation_model("SubmitJob").input_shape
    )
    assert "hidden" not in json.dumps([definition, job])
    nodes = definition["nodeProperties"]
    assert (nodes["numNodes"], nodes["mainNode"]) == (4, 0)
    (only,) = nodes["nodeRangeProperties"]
    container = only["container"]
    assert only["targetNodes"] == "0:3"
    assert container["command"][:6] == [
        "muster",
        "run",
        "train.py",
        "--source-dir",
        "/opt/ml/code",
        "--hosts",
    ]
    assert container["command"][-2:] == ["--env", "A"]
    assert container["secrets"] == [{"name": "MUSTER_JOB_SECRET", "valueFrom": "arn:aws:s"}]
    told = [{"name": "MUSTER_ENGINE", "value": "batch"}]
    assert container["environment"] == [*told, {"name": "MUSTER_STOP_TOTAL_S", "value": "90"}]
    assert container["linuxParameters"] == {"sharedMemorySize": 30000}
    strategy = definition["retryStrategy"]
    assert strategy["attempts"] == 3 and len(strategy["evaluateOnExit"]) <= 5
    again = [
        one.get("onExitCode") for one in strategy["evaluateOnExit"] if one["action"] == "RETRY"
    ]
    assert again == [None, "102", "106", "143"]


def test_a_job_is_submitted_asked_and_ended(account: Account) -> None:
    said = account.asked(*WORDS, "--hosts", "2", "--env", "TOKEN", "--output", "run")
    assert said.code == 0, said.err
    run = account.folder / "run"
    kept = json.loads((run / "submitted.json").read_text())
    (job,) = account.batch.describe_jobs(jobs=[kept["job_id"]])["jobs"]
    assert (job["jobName"], kept["where"]["region"]) == ("train", "us-west-2")
    (definition,) = account.definitions()
    assert definition["type"] == "multinode"  # of which moto tells no nodes
    secret = (run / "secret").read_text().strip()
    for text in (json.dumps(definition), (run / "batch.json").read_text()):
        assert secret not in text and "t0k" not in text
    said = account.asked("--status", "run")
    assert said.code == 0 and f"batch job {kept['job_id']}: " in said.out
    assert account.asked("--cancel", "run").code == 0


def test_variables_go_with_the_job_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The request as boto3 would send it."""
    sent: list[tuple[str, dict[str, Any]]] = []

    def answer(service: object, action: str, **request: Any) -> dict[str, Any]:
        sent.append((action, request))
        return {"jobDefinitionArn": "arn:d", "jobId": "j-1"}

    class Service:
        class meta:  # noqa: N801
            region_name = "us-west-2"

    monkeypatch.setattr(batch, "_client", lambda *_: Service)
    monkeypatch.setattr(batch, "_answer", answer)
    (tmp_path / "secret").write_text("f00d" * 16 + "\n")
    settings = {"queue": "gpus", "vcpus": "8", "memory": "60000"}
    job = Submission(request_of(environ={"A": "b"}), "train", str(tmp_path), "", "train:1")
    job = job._replace(settings=settings)
    submitted = batch.hand_over(job, batch.render(job))
    assert (submitted.job_id, [action for action, _ in sent]) == (
        "j-1",
        ["register_job_definition", "submit_job"],
    )
    (told,) = sent[1][1]["nodeOverrides"]["nodePropertyOverrides"]
    assert told == {
        "targetNodes": "0:1",
        "containerOverrides": {
            "environment": [
                {"name": "A", "value": "b"},
                {"name": "MUSTER_JOB_SECRET", "value": "f00d" * 16},
            ]
        },
    }


def test_what_batch_refuses_is_said_in_its_words(account: Account) -> None:
    said = account.asked(*(word.replace("queue=gpus", "queue=none") for word in WORDS))
    assert said.code == 2 and "AWS: " in said.err and "none" in said.err
    runs = account.folder / "muster-runs"
    assert not list(runs.glob("*-train"))
    assert not [one for one in account.definitions() if one["status"] == "ACTIVE"]


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({}, ("lost", None)),
        ({"j": {"status": "RUNNABLE"}}, ("queued", None)),
        ({"j": {"status": "STARTING"}}, ("running", None)),
        ({"j": {"status": "SUCCEEDED"}}, ("succeeded", 0)),
        ({"j": {"status": "FAILED"}}, ("failed", None)),
        (
            {"j": {"status": "FAILED"}, "j#0": {"container": {"exitCode": 42}}},
            ("failed", 42),
        ),
        (
            {"j": {"status": "FAILED", "attempts": [{"container": {"exitCode": 102}}]}},
            ("failed", 102),
        ),
        ({"j": {"status": "FAILED", "isTerminated": True}}, ("stopped", 143)),
        (
            {"j": {"status": "FAILED"}, "j#0": {"container": {"exitCode": 143}}},
            ("stopped", 143),
        ),
    ],
)
def test_the_state_is_the_main_nodes(
    told: dict[str, Any], expected: tuple[str, int | None]
) -> None:
    found = batch.judged(told, "j", "j#0")
    assert (found.word, found.code) == expected


def test_the_reason_of_a_failure_is_the_main_nodes() -> None:
    told = {"status": "FAILED", "statusReason": "Essential container in task exited"}
    found = {"j": told, "j#0": {"container": {"reason": "CannotPullContainerError: no such image"}}}
    assert batch.judged(found, "j", "j#0").why == "CannotPullContainerError: no such image"
    assert batch.judged({"j": told}, "j", "j#0").why == "Essential container in task exited"


class Service:
    """Answers as Batch, but for what `lost` names: there the connection ends without a word.
    `asked`: what it was."""

    def __init__(self, answers: Mapping[str, tuple[int, object]], lost: Sequence[str] = ()) -> None:
        asked: list[str] = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                name = self.path.rpartition("/")[2]
                asked.append(name)
                if name in lost:
                    self.close_connection = True
                    return
                status, answer = answers.get(name, (200, {}))
                text = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *words: object) -> None: ...

        self.asked = asked
        self._server = HTTPServer(("127.0.0.1", 0), Handler)

    def submitted(self, folder: Path, *words: str) -> Said:
        """What `muster submit` says to this service."""
        poll = {"poll_interval": 0.05}
        thread = threading.Thread(target=self._server.serve_forever, kwargs=poll)
        thread.start()
        try:
            url = f"http://127.0.0.1:{self._server.server_port}"
            keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
            around = {"AWS_ENDPOINT_URL": url, "AWS_DEFAULT_REGION": "us-west-2", **keys}
            return submit(folder, *WORDS, *words, environ=around)
        finally:
            self._server.shutdown()
            self._server.server_close()
            thread.join()


REGISTERED = 200, {"jobDefinitionArn": "arn:d", "jobDefinitionName": "d", "revision": 1}


def test_a_job_is_asked_for_once(tmp_path: Path) -> None:
    """A second try might make a second one."""
    service = Service({"registerjobdefinition": REGISTERED, "submitjob": (500, {})})
    said = service.submitted(tmp_path)
    assert said.code == 2, said.err
    assert service.asked == ["registerjobdefinition", "submitjob", "deregisterjobdefinition"]


@pytest.mark.parametrize(
    ("setting", "asked"),
    [
        ("container.nosuch=1", []),
        ("job.nosuch=1", ["registerjobdefinition", "deregisterjobdefinition"]),
    ],
)
def test_a_field_that_batch_does_not_have_is_named(
    tmp_path: Path, setting: str, asked: list[str]
) -> None:
    """By boto3, which sends no such request: no job can have been made."""
    service = Service({"registerjobdefinition": REGISTERED})
    said = service.submitted(tmp_path, "--set", setting)
    assert said.code == 2 and "Unknown parameter in " in said.err and '"nosuch"' in said.err, said
    assert "may have taken it" not in said.err, said.err
    assert service.asked == asked and not list((tmp_path / "muster-runs").glob("*-train"))


@pytest.mark.parametrize("definition", ["arn:d", "arn:other"])
def test_a_job_whose_answer_was_lost_is_found_or_looked_for(
    tmp_path: Path, definition: str
) -> None:
    taken = {"jobId": "j-1", "jobName": "train", "jobDefinition": definition}
    answers = {"registerjobdefinition": REGISTERED, "listjobs": (200, {"jobSummaryList": [taken]})}
    service = Service(answers, lost=["submitjob"])
    said = service.submitted(tmp_path)
    assert service.asked[:3] == ["registerjobdefinition", "submitjob", "listjobs"]
    if definition == "arn:d":
        assert said.code == 0 and "batch job j-1" in said.err, said.err
        assert service.asked[3:] == []
    else:
        assert said.code == 2 and "look for train in the queue gpus" in said.err, said.err


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("--image", ""), "--image is missing"),
        (("--source-dir", "code"), "Batch hands no code to nodes"),
        (("--set", "queue="), "queue is given twice"),
        (("--set", "gpus=many"), "--set gpus=many"),
        (("--set", "containers.x=1"), "begins with containers"),
        (("--set", "definition.nodeProperties.numNodes=3"), "muster decides it"),
        (("--retries", "10"), "at most 10 times"),
        (("--channel", "a=pvc:c"), "no folder of a node's container"),
        (("--kind", "array"), "one kind of job"),
        (("--env", f"A={'x' * 8192}"), "8192 characters"),
        (("--set", 'container.environment[0]={"name":"A"}'), "container.environment[2]"),
        (("--set", "container.resourceRequirements[0].type=GPU"), "resourceRequirements[2]"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, words: tuple[str, ...], what: str) -> None:
    said = submit(tmp_path, *WORDS, *words)
    assert said.code == 2 and what in said.err, said.err
    assert not (tmp_path / "muster-runs").exists()


def test_a_script_that_is_no_file_of_the_code_is_refused(tmp_path: Path) -> None:
    """A path of this machine means nothing there."""
    (tmp_path / "code").mkdir()
    script = str(tmp_path / "code" / "train.py")
    words = [sys.executable, "-m", "muster", "submit", script, *WORDS]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "name it from image:/opt/ml/code" in done.stderr


def test_without_boto3_the_extra_is_named(tmp_path: Path) -> None:
    (tmp_path / "boto3.py").write_text("raise ImportError")
    said = submit(tmp_path, *WORDS, environ={"PYTHONPATH": str(tmp_path)})
    assert said.code == 2 and "muster-training[batch]" in said.err


def test_a_job_that_batch_leaves_out_of_an_answer_is_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As it does for seconds after a job was submitted, and now and then later."""
    told = {"jobId": "j-1", "status": "RUNNING", "statusReason": "it runs"}
    answers: list[list[dict[str, Any]]] = [[], [told]]
    monkeypatch.setattr(batch, "_client", lambda *_: None)
    monkeypatch.setattr(batch, "_answer", lambda *_, **__: {"jobs": answers.pop(0)})
    assert batch.state(Submitted("batch", "j-1", "train", 1, "")) == JobState(
        RUNNING, None, "it runs"
    )


@pytest.mark.parametrize(("there", "refused"), [(True, False), (True, True), (False, False)])
def test_who_interrupts_the_submission_leaves_no_job_that_nobody_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bool, refused: bool
) -> None:
    """Batch has the job, and its answer is on the way. One that cannot be ended is kept."""
    sent: list[str] = []
    jobs = [{"jobId": "j-1", "jobDefinition": "arn:d"}] * there

    def answer(service: object, action: str, **request: Any) -> dict[str, Any]:
        sent.append(action)
        if action == "submit_job":
            raise KeyboardInterrupt
        if action == "terminate_job" and refused:
            raise UsageError("AWS: no right to")
        return {"jobDefinitionArn": "arn:d", "jobSummaryList": jobs}

    monkeypatch.setattr(
        batch, "_client", lambda *_: SimpleNamespace(meta=SimpleNamespace(region_name="r"))
    )
    monkeypatch.setattr(batch, "_answer", answer)
    (tmp_path / "secret").write_text("f00d" * 16 + "\n")
    settings = {"queue": "gpus", "vcpus": "8", "memory": "60000"}
    job = Submission(request_of(), "train", str(tmp_path), "", "train:1", settings=settings)
    if refused:
        assert batch.hand_over(job, batch.render(job)).job_id == "j-1"
    else:
        with pytest.raises(KeyboardInterrupt if there else UsageError) as raised:
            batch.hand_over(job, batch.render(job))
        fix = getattr(raised.value, "fix", "")
        assert there or "look for train in the queue gpus" in fix
    assert ("terminate_job" in sent) == there


def test_what_a_terminal_cannot_show_does_not_end_the_output(
    monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """A line that was cut within a character, and a progress bar where all is ASCII."""
    events = [{"message": text} for text in ("a\ud83d", "100 % \u2588", "end")]

    def answer(service: object, action: str, **request: Any) -> dict[str, Any]:
        if action == "describe_jobs":
            return {"jobs": [{"container": {"logStreamName": "s"}}]}
        told = [] if "nextToken" in request else events
        return {"events": told, "nextForwardToken": "t"}

    monkeypatch.setattr(batch, "_client", lambda *_: None)
    monkeypatch.setattr(batch, "_answer", answer)
    with open(1, "w", encoding="ascii", closefd=False) as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        batch.output(Submitted("batch", "j-1", "train", 1, "")).rest()
    assert capfdbinary.readouterr().out == "a?\n100 % \u2588\nend\n".encode()


def test_what_the_nodes_print_is_shown_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """From the beginning, in pieces, also what comes later; of a node that has printed nothing, and
    of an answer that does not come, nothing."""
    streams = {"n/0": ["a", "b"], "n/1": ["c"]}
    silent = False

    def answer(_service: object, action: str, **asked: Any) -> dict[str, Any]:
        if silent:
            raise UsageError("AWS: no answer")
        if action == "describe_jobs":
            assert asked["jobs"] == ["j-1#0", "j-1#1", "j-1#2"]
            names = [{"container": {"logStreamName": name}} for name in streams]
            return {"jobs": [*names, {"container": {}}]}
        lines = streams[asked["logStreamName"]]
        assert ("nextToken" in asked) != ("startFromHead" in asked)
        at = int(asked.get("nextToken", "0"))
        events = [{"message": line} for line in lines[at : at + 1]]  # the most of one answer
        return {"events": events, "nextForwardToken": str(at + len(events))}

    monkeypatch.setattr(batch, "_client", lambda *_: None)
    monkeypatch.setattr(batch, "_answer", answer)
    shown = batch.output(Submitted("batch", "j-1", "train", 3, ""))
    shown.more()
    assert capsys.readouterr().out == "a\nb\nc\n"
    streams["n/1"].append("d")
    shown.more()  # too soon to ask again
    assert capsys.readouterr().out == ""
    silent = True
    shown.rest()
    silent = False
    shown.rest()
    assert capsys.readouterr().out == "d\n"
