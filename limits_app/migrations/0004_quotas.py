import limits_app.models.fields
from decimal import Decimal
from django.db import migrations, models

from limits_app.models.going_back import forget_quotas


class Migration(migrations.Migration):

    dependencies = [
        ('limits_app', '0003_policy_on_unavailable'),
    ]

    operations = [
        migrations.RemoveConstraint(
            model_name='limit',
            name='limits_app_limit_kind',
        ),
        migrations.RemoveConstraint(
            model_name='limit',
            name='limits_app_limit_rate_fields',
        ),
        migrations.RemoveConstraint(
            model_name='limit',
            name='limits_app_limit_permit_fields',
        ),
        migrations.AddField(
            model_name='limit',
            name='period',
            field=models.CharField(blank=True, choices=[('hour', 'hour'), ('day', 'day'), ('week', 'week'), ('month', 'month')], help_text='What a quota is per, as the calendar has it; weeks start on Monday. Only quotas have one.', max_length=8, verbose_name='period'),
        ),
        migrations.AddField(
            model_name='limit',
            name='session_seconds',
            field=models.DecimalField(blank=True, decimal_places=3, help_text='Instead of a period: how many seconds a quota holds from its first use on, such as 18000.', max_digits=16, null=True, verbose_name='session (s)'),
        ),
        migrations.AddField(
            model_name='limit',
            name='soft',
            field=models.BooleanField(default=False, help_text='It refuses nothing: what goes beyond it is counted and reported. Permits cannot be soft.', verbose_name='soft'),
        ),
        migrations.AddField(
            model_name='limit',
            name='time_zone',
            field=limits_app.models.fields.ExactTextField(blank=True, help_text='Whose midnights count, such as “Europe/Berlin”; UTC when left empty. Only periods have one.', max_length=64, verbose_name='time zone'),
        ),
        migrations.AlterField(
            model_name='limit',
            name='kind',
            field=models.CharField(choices=[('rate', 'rate'), ('call', 'calls'), ('quota', 'quota'), ('resource', 'permits')], default='rate', help_text='A rate counts units that a request names, calls count requests, a quota counts units per calendar period or session, permits are held and given back.', max_length=16, verbose_name='kind'),
        ),
        migrations.AddConstraint(
            model_name='limit',
            constraint=models.CheckConstraint(condition=models.Q(('kind__in', ['rate', 'call', 'quota', 'resource'])), name='limits_app_limit_kind', violation_error_message='The kind is one of rate, call, quota and resource.'),
        ),
        migrations.AddConstraint(
            model_name='limit',
            constraint=models.CheckConstraint(condition=models.Q(('kind__in', ['quota', 'resource']), models.Q(('algorithm__in', ['token_bucket', 'leaky_bucket', 'sliding_window', 'fixed_window', 'gcra']), ('window_seconds__gte', Decimal('0.001')), ('window_seconds__lte', Decimal('31622400')), ('window_seconds__isnull', False), ('period', ''), ('time_zone', ''), ('session_seconds__isnull', True), ('max_hold_seconds__isnull', True)), _connector='OR'), name='limits_app_limit_rate_fields', violation_error_message='Rates and calls have an algorithm and a window of up to 366 days, no period, session or longest hold.'),
        ),
        migrations.AddConstraint(
            model_name='limit',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('kind', 'quota'), _negated=True), models.Q(('algorithm', ''), ('burst__isnull', True), ('window_seconds__isnull', True), ('max_hold_seconds__isnull', True), models.Q(models.Q(('period__in', ['hour', 'day', 'week', 'month']), models.Q(('time_zone', ''), _negated=True), ('session_seconds__isnull', True)), models.Q(('period', ''), ('time_zone', ''), ('session_seconds__gte', Decimal('0.001')), ('session_seconds__lte', Decimal('31622400')), ('session_seconds__isnull', False)), _connector='OR')), _connector='OR'), name='limits_app_limit_quota_fields', violation_error_message='A quota has either a period and a time zone, or a session of up to 366 days, and nothing of other kinds.'),
        ),
        migrations.AddConstraint(
            model_name='limit',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('kind', 'resource'), _negated=True), models.Q(('algorithm', ''), ('burst__isnull', True), ('window_seconds__isnull', True), ('period', ''), ('time_zone', ''), ('session_seconds__isnull', True), ('soft', False), models.Q(('max_hold_seconds__isnull', True), models.Q(('max_hold_seconds__gte', Decimal('0.001')), ('max_hold_seconds__lte', Decimal('31622400'))), _connector='OR')), _connector='OR'), name='limits_app_limit_permit_fields', violation_error_message='Permits have nothing of rates and quotas, and are not soft; they are held up to 366 days.'),
        ),
        migrations.RunPython(migrations.RunPython.noop, forget_quotas),
    ]
