//! What the commands do, seen from outside: one test binary, one module per command.

#[cfg(test)]
mod commands;
#[cfg(test)]
mod replay;
#[cfg(test)]
mod simulate;
#[cfg(test)]
mod trace;
