//! The columns that keep store times, and the statement that sets them back with the clock (R38).

/// A key that is taken until its job starts or ends expires then: no clock made that.
const NEVER: i64 = i64::MAX;

/// Columns of a table of jobs that keep store times.
pub const JOB_TIMES: [&str; 8] = [
    "due_at",
    "first_at",
    "last_at",
    "bound_at",
    "asked_at",
    "not_before",
    "started_at",
    "ended_at",
];

/// Other tables that keep store times, and their columns. The ticks of schedules are set back in their
/// own way.
pub const TIMES: &[(&str, &[&str])] = &[
    ("attempt", &["started_at", "ended_at"]),
    ("hold", &["expires_at"]),
    ("memory", &["burst_at", "last_at", "started_at", "expires_at"]),
    ("effect", &["begun_at", "done_at"]),
    ("idempotency", &["expires_at", "look_at"]),
    ("unreadable", &["set_aside_at"]),
];

/// A statement that sets the times of a table back by the parameter `by`, as far as they are after the
/// parameter `after`.
#[must_use]
pub fn set_times_back(table: &str, columns: &[&str], by: &str, after: &str) -> String {
    let set = columns.iter().map(|c| {
        format!("{c} = case when {c} > {after} and {c} < {NEVER} then {c} - {by} else {c} end")
    });
    let set: Vec<String> = set.collect();
    let any: Vec<String> = columns.iter().map(|c| format!("{c} > {after}")).collect();
    format!("update {table} set {} where {}", set.join(", "), any.join(" or "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r38_times_after_the_clock_are_set_back_but_no_end_of_time() {
        assert_eq!(
            set_times_back("quell.hold", &["a", "b"], "$1", "$2"),
            "update quell.hold set \
             a = case when a > $2 and a < 9223372036854775807 then a - $1 else a end, \
             b = case when b > $2 and b < 9223372036854775807 then b - $1 else b end \
             where a > $2 or b > $2"
        );
    }
}
