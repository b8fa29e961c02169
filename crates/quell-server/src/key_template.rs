//! Key templates.
