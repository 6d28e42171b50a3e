"""Text that changes with each request and stands near the front: found, and on request moved. Pure."""
