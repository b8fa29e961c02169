//! The pages over an API that a test makes up.

#[cfg(test)]
mod nested;
