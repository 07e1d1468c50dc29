from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('limits_app', '0008_audit_chain'),
    ]

    operations = [
        migrations.CreateModel(
            name='ScopeCount',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('hour', models.IntegerField(db_index=True)),
                ('label', models.BinaryField()),
                ('amounts', models.BinaryField()),
            ],
            options={
                'db_table': 'limits_app_count',
            },
        ),
        migrations.CreateModel(
            name='WaitingBatch',
            fields=[
                ('id', models.IntegerField(primary_key=True, serialize=False)),
                ('name', models.CharField(max_length=32)),
                ('counts', models.BinaryField()),
            ],
            options={
                'db_table': 'limits_app_batch',
            },
        ),
        migrations.AddField(
            model_name='scopestate',
            name='counted_until',
            field=models.BigIntegerField(db_index=True, null=True),
        ),
        migrations.AddField(
            model_name='scopestate',
            name='label',
            field=models.BinaryField(null=True),
        ),
    ]
