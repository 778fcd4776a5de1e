import inspect

from completions.contract.error_codes import ERRORS
from workers.engine import exceptions
from workers.engine.exceptions import EngineError


def test_every_error_has_a_code_and_a_message() -> None:
    errors = [
        e
        for _, e in inspect.getmembers(exceptions, inspect.isclass)
        if e.__module__ == exceptions.__name__
    ]
    assert all(issubclass(error, EngineError) for error in errors)
    assert all(str(error()) == error.__doc__ for error in errors)
    assert {error.code for error in errors} <= ERRORS.keys()
    assert EngineError("no memory").args == ("no memory",)
