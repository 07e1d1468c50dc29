"""The demo and test site: a plain Django project that uses limits_app as any other site would."""
