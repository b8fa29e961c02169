//! The version of a peer, read from its lock file.

/// The version of a package in the text of a lock file.
#[must_use]
pub fn version_in(lock: &str, package: &str) -> String {
    let name = format!("name = \"{package}\"");
    let after = lock.lines().skip_while(|line| *line != name);
    let version = after.filter_map(|line| line.strip_prefix("version = ")).next();
    version.unwrap_or("unknown").trim_matches('"').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_that_of_the_package() {
        let lock = "name = \"ab\"\nversion = \"1\"\n\nname = \"a\"\nversion = \"2\"\n";
        assert_eq!(version_in(lock, "ab"), "1");
        assert_eq!(version_in(lock, "a"), "2");
        assert_eq!(version_in(lock, "b"), "unknown");
    }
}
