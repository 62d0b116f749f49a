"""CUDA tensors: collectives composed of those of inner groups (NCCL), see `path.DevicePath`.

What it needs of a GPU it asks of torch; over gloo groups it runs on processors, where the tests
prove the compositions.
"""
