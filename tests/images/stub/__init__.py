"""Stand-ins for upstreams that no test can reach or should download: AWS's EFA installer, Neuron's
repositories, gigabytes of CUDA wheels. What is built with them is called a stub everywhere."""
