"""The form that limits anything in one sentence: `effects` is its preview, `saving` its changes and undoing them."""
