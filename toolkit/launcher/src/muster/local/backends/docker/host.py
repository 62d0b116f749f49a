"""One host of a run as a container: the life of the thread that makes and follows it."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

from muster.arguments import size_in_words
from muster.local.backends.docker import names as docker_names
from muster.local.backends.docker.engine import EngineError, explain
from muster.local.orders import Orders
from muster.local.paths import CHECKPOINTS, ML
from muster.types.errors import STOPPED_EXIT_CODE, ConfigError, InternalError

KILLED_CODE = 128 + signal.SIGKILL
NOT_FOUND_CODES = (126, 127)  # what an entrypoint ends with when it cannot start its program
NO_PROGRAM = ("executable file not found", "no such file or directory")


class ContainerHost(threading.Thread):
    """Writes its host index to `wake` once it has ended; then `status` (minus SIGKILL if muster
    killed it), or `error`, and `note` are final. `teller`: the client for signals."""

    def __init__(
        self,
        engine: Any,
        teller: Any,
        orders: Orders,
        host_index: int,
        wake: int,
    ) -> None:
        super().__init__(name=orders.hosts[host_index].name, daemon=True)
        assert orders.containers is not None
        self.host_index = host_index
        self.status: int | None = None
        self.error: EngineError | None = None
        self.note = ""
        self.started_at = 0.0
        self._engine = engine
        self._teller = teller
        self._orders = orders
        self._wanted = orders.containers
        self._order = orders.hosts[host_index]
        self._wake = wake
        self._container = ""
        self._lock = threading.Lock()
        self._unwanted = False
        self._killed = False

    def run(self) -> None:
        from docker.errors import DockerException

        try:
            self._live()
        except EngineError as error:
            self.error = error
        except (DockerException, OSError) as error:
            self.error = explain(error)
        except Exception as error:  # a thread's would be lost
            self.error = EngineError(f"{error!r}", exit_code=InternalError.exit_code)
        finally:
            os.close(self._order.output)
            os.close(self._order.errors)
            os.write(self._wake, bytes([self.host_index]))

    @property
    def is_making(self) -> bool:
        """Whether its container may still come to be."""
        return self.is_alive() and not self._container

    def send(self, number: signal.Signals, failed: Callable[[EngineError], None]) -> None:
        """To PID 1; before the start it means that there is none. Waits for nothing: `failed` hears
        in a thread when the engine could not be reached."""
        self._unwanted = True
        if number == signal.SIGKILL:
            self._killed = True
        threading.Thread(target=self._tell, args=(number, failed), daemon=True).start()

    def _tell(self, number: signal.Signals, failed: Callable[[EngineError], None]) -> None:
        from docker.errors import APIError, DockerException

        with self._lock:  # a start under way first
            if not self.started_at or self.status is not None:
                return
        try:
            self._teller.kill(self._container, number.value)
        except APIError:
            pass  # it has just ended
        except (DockerException, OSError) as error:
            failed(explain(error))

    def _live(self) -> None:
        self._container = self._create()
        # attached before the start, so that not a byte is missed
        stream = self._engine.attach(self._container, stream=True, demux=True)
        with self._lock:
            if not self._unwanted:
                self._start()
        if not self.started_at:
            self.status = STOPPED_EXIT_CODE
            return
        for output, errors in stream:
            _write(self._order.output, output)
            _write(self._order.errors, errors)
        status = self._engine.wait(self._container)["StatusCode"]
        if status in NOT_FOUND_CODES and not self._has_train():
            raise self._without_train()
        self.note = self._memory_note(status)
        self.status = -signal.SIGKILL if self._killed and status == KILLED_CODE else status

    def _create(self) -> str:
        wanted, name, engine = self._wanted, self._order.name, self._engine
        network = docker_names.network_name(wanted.run)
        limits: dict[str, object] = {"shm_size": wanted.shm_bytes}
        if wanted.memory_bytes is not None:  # no swap, as on SageMaker
            limits |= {"mem_limit": wanted.memory_bytes, "memswap_limit": wanted.memory_bytes}
        if wanted.cpus is not None:
            limits["nano_cpus"] = round(wanted.cpus * 1e9)
        # ndots: a name of a host that is not there yet is answered at once, by the engine itself
        host_config = engine.create_host_config(
            network_mode=network, mounts=self._mounts(), dns_opt=["ndots:1"], **limits
        )
        endpoint = engine.create_endpoint_config(aliases=[name])
        made = engine.create_container(
            wanted.image,
            list(self._order.argv),
            hostname=name,
            user=wanted.user or "0:0",
            environment=dict(self._order.environ),
            host_config=host_config,
            use_config_proxy=False,  # proxies of this machine's user may hold passwords
            networking_config=engine.create_networking_config({network: endpoint}),
            name=docker_names.container_name(wanted.run, name),
            labels=docker_names.labels(wanted.run, wanted.folder, wanted.keep, name),
        )
        return str(made["Id"])

    def _mounts(self) -> list[Any]:
        """The run folder at its own path, since hosts and the user are given paths in it."""
        from docker.types import Mount

        folder = self._wanted.folder
        places = {folder: folder, ML: self._order.base}
        if self._orders.checkpoint:
            places[CHECKPOINTS] = self._orders.checkpoint
        found = [Mount(target, source, type="bind") for target, source in places.items()]
        for name, path in self._orders.channels.items():
            found.append(Mount(f"{ML}/input/data/{name}", path, type="bind", read_only=True))
        return found

    def _start(self) -> None:
        from docker.errors import APIError

        try:
            self._engine.start(self._container)
        except APIError as error:
            text = str(error.explanation)
            if any(words in text for words in NO_PROGRAM) and not self._has_train():
                raise self._without_train() from None
            raise
        self.started_at = time.monotonic()

    def _without_train(self) -> EngineError:
        return EngineError(
            f"the image {self._wanted.image} has no program `train`",
            "build it FROM a muster image, or install the wheel muster_training in it "
            "(docs/how-to/images/own-image.md)",
            ConfigError.exit_code,
        )

    def _has_train(self) -> bool:
        """Whether there is one in the container's search path."""
        from docker.errors import NotFound

        config = self._engine.inspect_container(self._container)["Config"]
        environ = dict(text.split("=", 1) for text in config["Env"] or () if "=" in text)
        for folder in environ.get("PATH", os.defpath).split(os.pathsep):
            try:
                stream, _ = self._engine.get_archive(
                    self._container, os.path.join(folder, self._order.argv[0])
                )
            except NotFound:
                continue
            stream.close()
            return True
        return False

    def _memory_note(self, status: int) -> str:
        state = self._engine.inspect_container(self._container)["State"]
        if status == 0 or not state.get("OOMKilled"):
            return ""
        if self._wanted.memory_bytes is None:
            return "the kernel killed for memory, of which this machine had no more"
        limit = size_in_words(self._wanted.memory_bytes)
        return f"the kernel killed for memory: --memory is {limit} for each host"


def _write(fd: int, data: bytes | None) -> None:
    """All of it; when the reader is gone the run goes on."""
    while data:
        try:
            data = data[os.write(fd, data) :]
        except BrokenPipeError:
            return
