from django.db import migrations, models

from limits_app.models.append_only import guard, unguard
from limits_app.models.audit_head import CONTENT, digest_of

VERBS = ['create', 'update', 'delete', 'reset', 'top_up', 'prune']


def chain(apps, schema_editor):
    """Number the events that are there in the order in which they were written, and give each its digest."""
    using = schema_editor.connection.alias
    events = apps.get_model('limits_app', 'AuditEvent').objects.using(using)
    number, previous = 0, ''
    for key, *content in events.order_by('pk').values_list('pk', *CONTENT).iterator():
        number, digest = number + 1, digest_of(previous, content)
        events.filter(pk=key).update(number=number, previous=previous, digest=digest)
        previous = digest
    apps.get_model('limits_app', 'AuditHead').objects.using(using).create(number=number, digest=previous)


def unchain(apps, schema_editor):
    """Take away what older versions do not know."""
    using = schema_editor.connection.alias
    apps.get_model('limits_app', 'AuditEvent').objects.using(using).filter(verb='prune').delete()


class Migration(migrations.Migration):

    dependencies = [
        ('limits_app', '0007_usage'),
    ]

    operations = [
        migrations.CreateModel(
            name='AuditHead',
            fields=[
                ('id', models.PositiveSmallIntegerField(default=1, editable=False, primary_key=True, serialize=False)),
                ('number', models.BigIntegerField(default=0)),
                ('digest', models.CharField(blank=True, default='', max_length=64)),
                ('pruned_number', models.BigIntegerField(default=0)),
                ('pruned_digest', models.CharField(blank=True, default='', max_length=64)),
            ],
            options={
                'default_permissions': (),
            },
        ),
        migrations.AlterModelOptions(
            name='auditevent',
            options={'base_manager_name': 'objects', 'default_permissions': ('view',), 'ordering': ['-number'], 'permissions': [('revert_auditevent', 'Can revert changes of the audit log')], 'verbose_name': 'audit event', 'verbose_name_plural': 'audit events'},
        ),
        migrations.RemoveConstraint(
            model_name='auditevent',
            name='limits_app_audit_verb',
        ),
        migrations.AlterField(
            model_name='auditevent',
            name='verb',
            field=models.CharField(choices=[('create', 'create'), ('update', 'update'), ('delete', 'delete'), ('reset', 'reset'), ('top_up', 'top-up'), ('prune', 'prune')], max_length=8, verbose_name='verb'),
        ),
        migrations.AddField(
            model_name='auditevent',
            name='number',
            field=models.BigIntegerField(editable=False, null=True, verbose_name='number'),
        ),
        migrations.AddField(
            model_name='auditevent',
            name='previous',
            field=models.CharField(blank=True, default='', editable=False, max_length=64, verbose_name='digest of the event before it'),
            preserve_default=False,
        ),
        migrations.AddField(
            model_name='auditevent',
            name='digest',
            field=models.CharField(default='', editable=False, max_length=64, verbose_name='digest'),
            preserve_default=False,
        ),
        migrations.RunPython(chain, unchain),
        migrations.AlterField(
            model_name='auditevent',
            name='number',
            field=models.BigIntegerField(editable=False, unique=True, verbose_name='number'),
        ),
        migrations.AddConstraint(
            model_name='auditevent',
            constraint=models.CheckConstraint(condition=models.Q(('verb__in', VERBS)), name='limits_app_audit_verb'),
        ),
        migrations.RunPython(guard, unguard, atomic=False),
    ]
