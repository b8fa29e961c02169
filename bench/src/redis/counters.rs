//! What a round cost the server, by its own counters.

use anyhow::Context;
use quell_services::Redis;

/// The server's counters at one moment, and differences of them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Counters {
    /// Those that scripts called are among them.
    pub(crate) commands: f64,
    /// Of all threads of the server, in microseconds: one core's worth is all that it can do.
    pub(crate) cpu: f64,
    /// In and out.
    pub(crate) network_bytes: f64,
    /// Of the append-only file, which is never rewritten meanwhile.
    pub(crate) file_bytes: f64,
    /// In use, whatever the allocator holds beside.
    pub(crate) memory_bytes: f64,
}

impl Counters {
    pub(crate) fn read(server: &Redis) -> anyhow::Result<Self> {
        Counters::parse(&server.command(&["INFO"])?)
    }

    fn parse(info: &str) -> anyhow::Result<Self> {
        let field = |name: &str| {
            let fields = info.lines().filter_map(|line| line.trim_end().split_once(':'));
            let mut found = fields.filter(|(field, _)| *field == name);
            let value = found.next().and_then(|(_, value)| value.parse::<f64>().ok());
            value.with_context(|| format!("INFO has no number {name}"))
        };
        Ok(Counters {
            commands: field("total_commands_processed")?,
            cpu: (field("used_cpu_sys")? + field("used_cpu_user")?) * 1e6,
            network_bytes: field("total_net_input_bytes")? + field("total_net_output_bytes")?,
            file_bytes: field("aof_current_size")?,
            memory_bytes: field("used_memory")?,
        })
    }

    /// What came since, for one job.
    pub(crate) fn since(self, earlier: Counters, jobs: usize) -> Counters {
        let each = |now: f64, then: f64| (now - then) / jobs as f64;
        Counters {
            commands: each(self.commands, earlier.commands),
            cpu: each(self.cpu, earlier.cpu),
            network_bytes: each(self.network_bytes, earlier.network_bytes),
            file_bytes: each(self.file_bytes, earlier.file_bytes),
            memory_bytes: each(self.memory_bytes, earlier.memory_bytes),
        }
    }
}

/// How often each command was called, by name.
pub(crate) fn commands(server: &Redis) -> anyhow::Result<serde_json::Value> {
    let stats = server.command(&["INFO", "commandstats"])?;
    let calls = stats.lines().filter_map(|line| {
        let (name, reported) = line.strip_prefix("cmdstat_")?.split_once(':')?;
        let calls = reported.strip_prefix("calls=")?.split_once(',')?.0.parse::<u64>().ok()?;
        Some((name.to_owned(), calls.into()))
    });
    Ok(serde_json::Value::Object(calls.collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_read_by_name_and_told_for_one_job() {
        let info = |number: u32| {
            format!(
                "# Stats\r\ntotal_commands_processed:{number}\r\nused_cpu_sys:1.5\r\n\
                 used_cpu_user:0.5\r\ntotal_net_input_bytes:{number}\r\n\
                 total_net_output_bytes:10\r\naof_current_size:{number}\r\nused_memory:{number}\r\n"
            )
        };
        let (before, after) = (Counters::parse(&info(10)), Counters::parse(&info(30)));
        let each = after.unwrap().since(before.unwrap(), 10);
        let expected = Counters {
            commands: 2.0,
            cpu: 0.0,
            network_bytes: 2.0,
            file_bytes: 2.0,
            memory_bytes: 2.0,
        };
        assert_eq!(each, expected);
        assert!(Counters::parse("used_memory:1").is_err());
    }
}
