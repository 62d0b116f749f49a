"""Some ranks of a job that makes groups: `starts_rank THREADS PORT TIMES`, each rank a thread
with a connection to the store of its own. Prints one line of JSON for each group: when the
last of its ranks came (monotonic), and when the last had the group."""

from __future__ import annotations

import json
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import torch.distributed as dist

from muster_collectives.tools.bench.group import place
from muster_collectives.torch.creation import make_communicator

LIMIT = timedelta(seconds=120)
TOGETHER_S = 0.3  # from the word that all are here to the start of each group


def main(threads: int, port: int, times: int) -> None:
    process, processes = place()
    first, size = process * threads, processes * threads
    served = None
    if first == 0:
        served = dist.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
    here = threading.Barrier(threads)

    def rank(number: int) -> list[tuple[float, float]]:
        store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=LIMIT)
        spans = []
        for turn in range(times):
            store.add(f"here/{turn}", 1)
            if number == 0:
                while store.add(f"here/{turn}", 0) < size:
                    time.sleep(0.001)
                store.set(f"start/{turn}", repr(time.monotonic() + TOGETHER_S))
            at = float(store.get(f"start/{turn}"))
            here.wait()
            time.sleep(max(0.0, at - time.monotonic()))
            within = dist.PrefixStore(f"group {turn}", store)
            came = time.monotonic()
            made = make_communicator(within, number, size, "starts", LIMIT.total_seconds())
            spans.append((came, time.monotonic()))
            if made.communicator is None:
                raise RuntimeError(made.why)
            made.communicator.close()
        return spans

    with ThreadPoolExecutor(threads) as pool:
        found = list(pool.map(rank, range(first, first + threads)))
    for turn in range(times):
        came, had = (max(each) for each in zip(*(spans[turn] for spans in found), strict=True))
        print(json.dumps({"came": came, "had": had}), flush=True)
    # the store lives until its last rank has said all
    if served is None:
        dist.TCPStore("127.0.0.1", port, is_master=False).add("gone", 1)
    else:
        while served.add("gone", 0) < processes - 1:
            time.sleep(0.01)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
