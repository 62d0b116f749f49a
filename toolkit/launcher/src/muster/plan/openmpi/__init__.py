"""Jobs under mpirun of Open MPI."""
