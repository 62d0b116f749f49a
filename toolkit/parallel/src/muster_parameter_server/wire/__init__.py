"""What travels between workers and servers: frames, the proof of the key, sockets."""
