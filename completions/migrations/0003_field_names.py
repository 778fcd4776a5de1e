from django.db import migrations


class Migration(migrations.Migration):

    dependencies = [
        ('completions', '0002_max_concurrency_counts_background_jobs'),
    ]

    operations = [
        migrations.RenameField(
            model_name='job',
            old_name='view',
            new_name='context',
        ),
        migrations.RenameField(
            model_name='batch',
            old_name='watched',
            new_name='counted_fields',
        ),
    ]
