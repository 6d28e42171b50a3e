"""Workloads: sequences of requests read from files."""

from prefixpilot.workloads.base import BatchLine, Workload, WorkloadRequest
from prefixpilot.workloads.reading import read_workload

__all__ = ["BatchLine", "Workload", "WorkloadRequest", "read_workload"]
