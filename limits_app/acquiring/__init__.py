"""What is handed out and taken back: limit sets, pools, acquisitions, leases and waiting; without Django."""
