//! Arguments that the command lines of all programs have.

// No doc comment: clap would show it in the help of a command that has none of its own.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct DebouncedCallers {
    #[arg(long, default_value_t = 32)]
    pub callers: usize,
    #[arg(long, default_value_t = 100)]
    pub keys: usize,
}
