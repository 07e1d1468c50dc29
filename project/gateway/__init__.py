"""A gateway to a language model: tenants share the tokens of two regions, and the database has the limits of each.

Teams and their keys have budgets in money, which tokens are charged to at their price.

`tokens` estimates the tokens of a prompt, `provider` is a fake provider that streams a response, and `gateway`
acquires, calls and reports the actual usage.
"""
