"""What limits_app costs beside references and peers; `docs/performance.md` keeps the figures."""
