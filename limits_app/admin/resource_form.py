"""The form of a resource, which offers the stores that the settings have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django import forms
from django.utils.translation import gettext as _

from limits_app import conf
from limits_app.models import Resource

if TYPE_CHECKING:
    ResourceModelForm = forms.ModelForm[Resource]
else:
    ResourceModelForm = forms.ModelForm  # it takes no parameter when the code runs

__all__ = ["ResourceForm"]


class ResourceForm(ResourceModelForm):
    """A store that the settings have no longer stays chosen until somebody chooses another."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if "store" in self.fields:
            default = _("the default one (%(alias)s)") % {"alias": conf.get(conf.STORE)}
            aliases = dict.fromkeys([*conf.get(conf.STORES), *filter(None, [self.instance.store])])
            self.fields["store"].widget = forms.Select(choices=[("", default), *zip(aliases, aliases, strict=True)])
