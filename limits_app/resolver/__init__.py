"""The resolver: the effective limits of an entity on a resource, compiled and cached until something changes.

The models read the policies, `policies` chooses those that apply, `resolved_set` compiles them together with the
members of a pool where one serves the resource, and `cache` keeps the result.
"""
