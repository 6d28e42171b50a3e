"""Whether an engine's prefix cache can work as it is set up: what it says of itself, checked, and a live probe."""

from prefixpilot.engines.doctor.client import Client
from prefixpilot.engines.doctor.examine import Report, examine
from prefixpilot.engines.doctor.findings import Finding, Status

__all__ = ["Client", "Finding", "Report", "Status", "examine"]
