//! Files that tests write, and that vanish at the end of a test.
#![expect(clippy::expect_used, reason = "a test fails when its files cannot be written")]

use std::path::Path;

use tempfile::TempDir;

/// A folder of files, which vanishes when it is dropped.
#[derive(Debug)]
pub struct Files(TempDir);

impl Default for Files {
    fn default() -> Self {
        Files::new()
    }
}

impl Files {
    /// A folder without files.
    ///
    /// # Panics
    /// When it cannot be made.
    #[must_use]
    pub fn new() -> Files {
        Files(tempfile::tempdir().expect("a temporary folder"))
    }

    /// Where the folder is.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Writes a file; returns its path.
    ///
    /// # Panics
    /// When it cannot be written.
    pub fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> String {
        let file = self.0.path().join(name);
        std::fs::write(&file, bytes).expect("the file is written");
        file.into_os_string().into_string().expect("paths are UTF-8")
    }

    /// Writes a CSV file with the columns timestamp and key, the times in seconds; returns its path.
    ///
    /// # Panics
    /// When it cannot be written.
    pub fn csv(&self, name: &str, events: &[(f64, &str)]) -> String {
        let rows = events.iter().map(|(at, key)| format!("{at},{key}\n"));
        self.write(name, format!("timestamp,key\n{}", rows.collect::<String>()))
    }
}
