"""Fewer bytes on the wire: block quantization, half floats, an exchange that rounds twice at most.

Used by the DDP hooks and by the device path's leg between nodes.
"""
