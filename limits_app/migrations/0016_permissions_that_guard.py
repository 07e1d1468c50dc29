from django.db import migrations


class Migration(migrations.Migration):

    dependencies = [
        ('limits_app', '0015_endpoint_has_name'),
    ]

    operations = [
        migrations.AlterModelOptions(
            name='denial',
            options={'default_permissions': (), 'ordering': ['-minute', '-count'], 'verbose_name': 'denial', 'verbose_name_plural': 'denials'},
        ),
        migrations.AlterModelOptions(
            name='layoutdefinition',
            options={'default_permissions': ()},
        ),
        migrations.AlterModelOptions(
            name='scopecount',
            options={'default_permissions': ()},
        ),
        migrations.AlterModelOptions(
            name='scopestate',
            options={'default_permissions': ()},
        ),
        migrations.AlterModelOptions(
            name='storeversion',
            options={'default_permissions': ()},
        ),
        migrations.AlterModelOptions(
            name='waitingbatch',
            options={'default_permissions': ()},
        ),
    ]
