"""Parameters, gradients and the optimizer's state cut over replicas (key
sharded_data_parallel_degree), by torch's `fully_shard`."""
