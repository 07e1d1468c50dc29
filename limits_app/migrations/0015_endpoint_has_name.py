from django.db import migrations, models
from django.db.models import Q
from django.db.models.functions import Concat, Substr


def name_by_what_they_are_about(apps, schema_editor):
    """Name endpoints that were written without a name by their path or view, as far as a name can be that long."""
    endpoints = apps.get_model('limits_app', 'Endpoint').objects.using(schema_editor.connection.alias)
    endpoints.filter(name='').update(name=Substr(Concat('path', 'view_name'), 1, 100))


class Migration(migrations.Migration):

    dependencies = [
        ('limits_app', '0014_owners_of_limits'),
    ]

    operations = [
        migrations.RunPython(name_by_what_they_are_about, migrations.RunPython.noop),
        migrations.AddConstraint(
            model_name='endpoint',
            constraint=models.CheckConstraint(condition=~Q(name=''), name='limits_app_endpoint_has_name'),
        ),
    ]
