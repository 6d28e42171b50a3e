"""Past one machine, on Ray (floor 6): the proxy as a Ray Serve application, and batches planned by Ray tasks.

Importing this package imports no Ray; :mod:`~prefixpilot.ray.app`, :mod:`~prefixpilot.ray.engines` and
:mod:`~prefixpilot.ray.planning` do, and say what to install where it is missing.
"""
