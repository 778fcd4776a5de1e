"""A connection without a socket."""


class Transport:
    """Remembers what was written, and whether more would be read."""

    def __init__(self):
        self.written = b""
        self.closed = False
        self.ended = False
        self.reading = True

    def get_extra_info(self, _name):
        return None

    def write(self, data):
        assert not self.ended
        self.written += data

    def write_eof(self):
        self.ended = True

    def close(self):
        self.closed = self.ended = True

    abort = close

    def is_closing(self):
        return self.closed

    def pause_reading(self):
        self.reading = False

    def resume_reading(self):
        self.reading = True
