"""A worker of our parameter server that takes a step for each line of its input."""

from __future__ import annotations

import sys
import time

import torch

from muster_parameter_server import ParameterServer, sgd


def main(elements: int) -> None:
    """Prints the seconds of every step; raises when the parameters are not what they must be."""
    torch.set_num_threads(1)
    parameter, gradient = torch.zeros(elements), torch.ones(elements)
    with ParameterServer.connect([parameter], sgd(1.0), timeout_s=100) as server:
        print("ready", flush=True)
        for _ in sys.stdin:
            began = time.monotonic()
            server.push_pull([gradient])
            print(time.monotonic() - began, flush=True)
        if not torch.equal(parameter, torch.full_like(parameter, -float(server.step))):
            raise RuntimeError("the parameters are wrong")


if __name__ == "__main__":
    main(int(sys.argv[1]))
