"""The script of `muster doctor --self-test`: each rank prints its number, the size of the world,
and the sum of all ranks' numbers plus 1, as its distribution gives them.

It is copied and run on its own, so nothing of muster is imported from beside it.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from typing import Any

LIMIT_S = 20.0


def alone() -> tuple[int, int, float]:
    """A script once per host, which knows the others from the environment alone."""
    hosts = json.loads(os.environ["SM_HOSTS"])
    rank = hosts.index(os.environ["SM_CURRENT_HOST"])
    address = (os.environ["SM_MASTER_ADDR"], int(os.environ["SM_MASTER_PORT"]))
    return rank, len(hosts), over_sockets(rank, len(hosts), address)


def tensorflow() -> tuple[int, int, float]:
    """The cluster as TensorFlow would read it; TensorFlow itself is not started."""
    config = json.loads(os.environ["TF_CONFIG"])
    workers, rank = config["cluster"]["worker"], config["task"]["index"]
    host, _, port = workers[0].rpartition(":")
    return rank, len(workers), over_sockets(rank, len(workers), (host, int(port)))


def over_sockets(rank: int, world: int, address: tuple[str, int]) -> float:
    """Rank 0 listens at the address, adds what the others send, and answers them."""
    if rank:
        with connect(address) as sock:
            sock.sendall(f"{rank + 1}\n".encode())
            return float(sock.makefile().readline())
    with socket.create_server(address) as server:
        server.settimeout(LIMIT_S)
        others = [server.accept()[0] for _ in range(world - 1)]
        total = 1 + sum(float(one.makefile().readline()) for one in others)
        for one in others:
            one.sendall(f"{total}\n".encode())
            one.close()
    return total


def connect(address: tuple[str, int]) -> socket.socket:
    until = time.monotonic() + LIMIT_S
    while True:
        try:
            sock = socket.create_connection(address, LIMIT_S)
            sock.settimeout(LIMIT_S)
            return sock
        except ConnectionRefusedError:
            if time.monotonic() > until:
                raise
            time.sleep(0.02)


def torch(backend: str) -> tuple[int, int, float]:
    from importlib import import_module

    dist: Any = import_module("torch.distributed")
    tensor: Any = import_module("torch").ones(1)
    if backend == "modelparallel":
        import_module("smdistributed.modelparallel.torch").init()
    else:
        if backend in ("muster", "smddp"):
            name = {"muster": "muster_collectives.torch"}.get(backend)
            import_module(name or "smdistributed.dataparallel.torch.torch_smddp")
        dist.init_process_group(backend)
    rank, world = dist.get_rank(), dist.get_world_size()
    tensor *= rank + 1
    dist.all_reduce(tensor)
    dist.barrier()
    dist.destroy_process_group()
    return rank, world, tensor.item()


def mpi4py() -> tuple[int, int, float]:
    from importlib import import_module

    world: Any = import_module("mpi4py.MPI").COMM_WORLD
    rank: int = world.Get_rank()
    return rank, world.Get_size(), world.allreduce(rank + 1.0)


def mpirun() -> tuple[int, int, None]:
    """As a rank without an MPI library sees it: nothing can add."""
    return int(os.environ["OMPI_COMM_WORLD_RANK"]), int(os.environ["OMPI_COMM_WORLD_SIZE"]), None


def parameter_server() -> tuple[int, int, float]:
    """The servers apply the mean of all ranks' gradients once."""
    from importlib import import_module

    library: Any = import_module("muster_parameter_server")
    parameter: Any = import_module("torch").zeros(1, requires_grad=True)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    optimizer = library.ServerOptimizer([parameter], library.sgd(lr=1.0))
    (parameter * (rank + 1)).sum().backward()
    optimizer.step()
    optimizer.close()
    return rank, world, -parameter.item() * world


def main() -> None:
    kind, _, more = os.environ["SELF_TEST"].partition(":")
    rank, world, total = globals()[kind](*filter(None, [more]))
    sys.stdout.write(json.dumps({"rank": rank, "world": world, "sum": total}) + "\n")


if __name__ == "__main__":
    main()
