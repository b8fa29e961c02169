//! What the commands do, seen from outside: one test binary, one module per command.

