from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('limits_app', '0016_permissions_that_guard'),
    ]

    operations = [
        migrations.CreateModel(
            name='LastCommit',
            fields=[
                ('connection', models.BigIntegerField(primary_key=True, serialize=False)),
                ('number', models.BigIntegerField()),
            ],
            options={
                'db_table': 'limits_app_commit',
                'default_permissions': (),
            },
        ),
        migrations.RemoveField(
            model_name='scopestate',
            name='stamp',
        ),
    ]
