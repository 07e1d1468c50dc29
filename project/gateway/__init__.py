"""A gateway to a language model: tenants share the tokens of two regions, each within limits of its own.

`tokens` estimates what a prompt will cost, `provider` is a stand-in for the provider and streams an answer, and
`gateway` acquires, calls and reports what was really used.
"""
