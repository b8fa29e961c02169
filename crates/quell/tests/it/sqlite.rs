//! The library on real SQLite files, in real time.
