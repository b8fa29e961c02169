//! The library as its users call it: one test binary, one module per part.

#[cfg(test)]
mod files;
#[cfg(test)]
mod replay;
#[cfg(test)]
mod simulate;
#[cfg(test)]
mod trace;
