//! Pictures of what thresholds save and cost: SVG for files and pages, text for a terminal.
