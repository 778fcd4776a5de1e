"""What the CPU worker does on a schedule: settle ended jobs, sample the load, prune."""
