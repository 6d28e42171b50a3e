"""Planners of a batch: which order inside each context, and which order between contexts, saves most tokens.

A planner takes contexts that are known together and gives them back reordered, in the order in which to run them. The
paper's own planner (Algorithm 4) is :func:`prefixpilot.index.build`. The modules need NumPy; import them where used.
"""
