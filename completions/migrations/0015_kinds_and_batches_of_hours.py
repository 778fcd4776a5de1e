from django.db import migrations, models


def merge(apps, schema_editor):
    """Add up the rows that the older table cannot tell apart, on the way back."""
    hours = apps.get_model('completions', 'UsageHour').objects.using(schema_editor.connection.alias)
    cell = ('organization_id', 'api_key_id', 'hour', 'model', 'adapter')
    sums = {
        field.name: models.Sum(field.name)
        for field in hours.model._meta.fields
        if isinstance(field, models.PositiveBigIntegerField | models.PositiveIntegerField)
    }
    several = hours.order_by().values(*cell).annotate(rows=models.Count('id'), kept=models.Min('id')).filter(rows__gt=1)
    for group in list(several):
        rows = hours.filter(**{name: group[name] for name in cell})
        added = rows.order_by().aggregate(**sums)
        rows.exclude(pk=group['kept']).delete()
        rows.update(**added)


class Migration(migrations.Migration):

    dependencies = [
        ('completions', '0014_words_of_webhooks'),
    ]

    operations = [
        migrations.RemoveConstraint(
            model_name='usagehour',
            name='one_row_per_key_and_hour',
        ),
        migrations.AddField(
            model_name='usagehour',
            name='batch',
            field=models.CharField(blank=True, help_text='The batch of the lines; empty for other jobs.', max_length=64),
        ),
        migrations.AddField(
            model_name='usagehour',
            name='kind',
            field=models.CharField(blank=True, help_text='As in UsageRecord; empty before it was summed.', max_length=10),
        ),
        migrations.AddConstraint(
            model_name='usagehour',
            constraint=models.UniqueConstraint(fields=('api_key', 'hour', 'model', 'adapter', 'kind', 'batch'), name='one_row_per_key_and_hour'),
        ),
        migrations.RunPython(migrations.RunPython.noop, merge),
    ]
