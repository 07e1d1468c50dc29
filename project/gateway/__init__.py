"""A gateway to a language model: tenants share the tokens of two regions, and the database has the limits of each.

`tokens` estimates what a prompt will cost, `provider` is a stand-in for the provider and streams an answer, and
`gateway` acquires, calls and reports what was really used.
"""
