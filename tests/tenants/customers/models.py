"""The tenants of a site with django-tenants, and their host names."""

from __future__ import annotations

from typing import Any

from django_tenants.models import DomainMixin, TenantMixin

Tenants: Any = TenantMixin
Domains: Any = DomainMixin


class Customer(Tenants):
    """A tenant with a schema of its own."""

    auto_create_schema = True


class Domain(Domains):
    """A host name of a tenant."""
