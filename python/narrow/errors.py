"""The exceptions of narrow. Each is also the built-in exception of its kind, and carries one sentence."""


class Error(Exception):
    """The base of every exception that narrow raises."""


class InvalidArgument(Error, ValueError):
    """The arguments contradict each other or the documented contract."""


class WrongType(InvalidArgument, TypeError):
    """Values of a type that is not rounded without being asked."""


class Unsupported(Error, NotImplementedError):
    """The request is meaningful, but this build or this machine cannot serve it."""


class IoError(Error, OSError):
    """The operating system refused to read or write."""


class CorruptFile(Error, OSError):
    """A file was read and is not what it claims to be."""


class CudaError(Error, RuntimeError):
    """A CUDA call failed."""
