"""The periods that the dashboard shows, divided into buckets."""

from dataclasses import dataclass
from datetime import datetime, timedelta


@dataclass(frozen=True, slots=True)
class Period:
    """`count` buckets of length `step`. The last bucket holds the present."""

    name: str
    title: str
    step: timedelta
    count: int

    def start(self, now: datetime) -> datetime:
        """The beginning of the first bucket."""
        return self.floor(now) - (self.count - 1) * self.step

    def floor(self, moment: datetime) -> datetime:
        """The beginning of the bucket that contains the moment."""
        midnight = moment.replace(hour=0, minute=0, second=0, microsecond=0)
        return midnight + (moment - midnight) // self.step * self.step

    def buckets(self, now: datetime) -> list[datetime]:
        """The beginnings of all buckets."""
        return [self.start(now) + i * self.step for i in range(self.count)]

    def label(self, bucket: datetime) -> str:
        return f"{bucket:%b %-d}" if self.step >= timedelta(days=1) else f"{bucket:%H:%M}"


HOUR = Period("1h", "1 hour", timedelta(minutes=5), 12)
DAY = Period("24h", "24 hours", timedelta(hours=1), 24)
MONTH = Period("30d", "30 days", timedelta(days=1), 30)
PERIODS = {period.name: period for period in (HOUR, DAY, MONTH)}
