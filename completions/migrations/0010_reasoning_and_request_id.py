from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('completions', '0009_request_name'),
    ]

    operations = [
        migrations.AddField(
            model_name='batch',
            name='reasoning_tokens',
            field=models.PositiveBigIntegerField(default=0, help_text='Of the completion tokens.'),
        ),
        migrations.AddField(
            model_name='job',
            name='request_id',
            field=models.CharField(
                blank=True, help_text='Of the HTTP request that made it.', max_length=64,
                default='',
            ),
            preserve_default=False,
        ),
    ]
