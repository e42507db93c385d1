"""The two kinds of error that leave this package on purpose."""


class UserError(ValueError):
    """A mistake in what the user asked for: printed as one line on stderr, exit code 2.

    The message names the argument or file, what was expected and what came instead.
    """


class SampleError(RuntimeError):
    """One sample cannot be evaluated (missing file, undecodable video, empty evidence).

    It becomes a recorded failure of that sample; the run goes on.
    """


def one_line(error: BaseException) -> str:
    """An error's text on one line, as stderr and a failed row hold it."""
    return " ".join(str(error).split())
