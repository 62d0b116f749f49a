"""CUDA tensors: collectives composed of those of inner groups (NCCL), see `path.DevicePath`.

    layout = plan_layout(rank, node_of)
    groups = make_groups(store, layout, nccl(timeout_s))
    path = DevicePath(groups, read_settings(os.environ, timeout_s))

What it needs of a GPU it asks of torch; over gloo groups it runs on processors, where the tests
prove the compositions.
"""

from muster_collectives.torch.cuda.groups import InnerGroups, Make, gloo, make_groups, nccl
from muster_collectives.torch.cuda.layout import Layout, plan_layout
from muster_collectives.torch.cuda.path import DevicePath
from muster_collectives.torch.cuda.settings import DeviceSettings, read_settings
from muster_collectives.torch.cuda.staged import GroupSum, HostSum, LateSum

__all__ = [
    "DevicePath",
    "DeviceSettings",
    "GroupSum",
    "HostSum",
    "InnerGroups",
    "LateSum",
    "Layout",
    "Make",
    "gloo",
    "make_groups",
    "nccl",
    "plan_layout",
    "read_settings",
]
