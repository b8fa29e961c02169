"""A server of Quell for as long as a bench measures it."""

import contextlib
import os
import subprocess
import tempfile


def private(path, flags):
    return os.open(path, flags, 0o600)


@contextlib.contextmanager
def serving(program, config, more=(), **files):
    """Serve `config`, in which `{folder}` is a new folder that holds `files`; yield the port.

    `more` are options of the command.
    """
    with process(program, config, more, **files) as (port, _):
        yield port


@contextlib.contextmanager
def process(program, config, more=(), **files):
    """Do the same; yield the port and the number of the process."""
    with tempfile.TemporaryDirectory() as folder:
        files["quell.toml"] = config.format(folder=folder)
        for name, text in files.items():
            # Quell refuses files of secrets that every user can read.
            with open(f"{folder}/{name}", "w", opener=private) as file:
                file.write(text)
        command = [program, "serve", "--config", f"{folder}/quell.toml", *more]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            yield int(server.stdout.readline().rsplit(":", 1)[1]), server.pid
        finally:
            server.terminate()
            server.wait()
