//! A private Redis Cluster: shards that each have a master and perhaps replicas.
//!
//! Nodes are named by their place in [`RedisCluster::addresses`]. Whose a slot is, each node says of
//! itself; nodes that do not run are not asked.

use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail, ensure};

use crate::Redis;
use crate::process::await_that;

/// How long nodes may take to agree on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// How many keys are moved at a time.
const KEYS: usize = 100;
/// How many slots there are.
const SLOTS: usize = 16_384;
/// The fewest masters that `redis-cli` makes a cluster of.
const FEWEST: usize = 3;
/// A dead master is noticed after 1.5 s. A replica is filled at once: until it is, nothing could take
/// its master's place.
const SETTINGS: [&str; 4] = [
    "cluster-enabled yes",
    "cluster-node-timeout 1500",
    "repl-diskless-sync-delay 0",
    "loglevel notice",
];

/// The first and last slot of each range.
type Slots = Vec<(u16, u16)>;

/// A cluster of its own.
#[derive(Debug)]
pub struct RedisCluster {
    nodes: Vec<Redis>,
}

/// A node as some node sees it.
#[derive(Debug)]
struct Member {
    id: String,
    port: u16,
    is_myself: bool,
    is_master: bool,
    /// What is on the move is with whom it comes from.
    slots: Slots,
}

impl Member {
    fn has(&self, slot: u16) -> bool {
        self.is_master && self.slots.iter().any(|(first, last)| (*first..=*last).contains(&slot))
    }
}

impl RedisCluster {
    /// Starts a cluster of `masters`, each with `replicas`; settings are as for [`Redis::start`]. It is
    /// whole once this returns: every replica is ready to take over.
    ///
    /// # Errors
    /// Where it cannot be installed or started, with what was said; and where fewer than three
    /// masters are to have replicas, because no majority would let one take over.
    pub fn start(masters: usize, replicas: usize, settings: &[&str]) -> anyhow::Result<Self> {
        let is_small = masters < FEWEST;
        ensure!(!is_small || replicas == 0, "replicas need {FEWEST} masters at least");
        let settings = [&SETTINGS[..], settings].concat();
        let count = masters * (replicas + 1);
        let nodes = (0..count).map(|_| Redis::start(&settings)).collect::<Result<_, _>>()?;
        let cluster = RedisCluster { nodes };
        if is_small {
            cluster.join()?
        } else {
            cluster.create(replicas)?
        }
        cluster.await_ok()?;
        Ok(cluster)
    }

    fn create(&self, replicas: usize) -> anyhow::Result<()> {
        let mut create = Command::new("redis-cli");
        create.args(["--cluster", "create"]).args(self.addresses());
        create.args(["--cluster-replicas", &replicas.to_string(), "--cluster-yes"]);
        if let Some(password) = self.node(0)?.password() {
            create.env("REDISCLI_AUTH", password);
        }
        let output = create.stdin(Stdio::null()).output().context("cannot run redis-cli")?;
        let text = String::from_utf8_lossy(&output.stdout);
        ensure!(output.status.success(), "no cluster: {text}");
        Ok(())
    }

    /// What `redis-cli` would do, of masters only, which may be fewer than it allows.
    fn join(&self) -> anyhow::Result<()> {
        let first = self.node(0)?.port().to_string();
        for (number, node) in self.nodes.iter().enumerate() {
            let range = SLOTS * number / self.nodes.len()..SLOTS * (number + 1) / self.nodes.len();
            let slots: Vec<String> = range.map(|slot| slot.to_string()).collect();
            let words = ["CLUSTER", "ADDSLOTS"].into_iter().chain(slots.iter().map(String::as_str));
            node.command(&words.collect::<Vec<_>>())?;
            node.command(&["CLUSTER", "SET-CONFIG-EPOCH", &(number + 1).to_string()])?;
            if number > 0 {
                node.command(&["CLUSTER", "MEET", "127.0.0.1", &first])?;
            }
        }
        Ok(())
    }

    /// `host:port` of each node.
    #[must_use]
    pub fn addresses(&self) -> Vec<String> {
        self.nodes.iter().map(Redis::address).collect()
    }

    /// The same with commas between.
    #[must_use]
    pub fn nodes(&self) -> String {
        self.addresses().join(",")
    }

    /// A node.
    ///
    /// # Errors
    /// Fails where there is none of this number.
    pub fn node(&self, node: usize) -> anyhow::Result<&Redis> {
        self.nodes.get(node).with_context(|| format!("node {node}: there is none"))
    }

    /// A node, to hurt it.
    ///
    /// # Errors
    /// Fails where there is none of this number.
    pub fn node_mut(&mut self, node: usize) -> anyhow::Result<&mut Redis> {
        self.nodes.get_mut(node).with_context(|| format!("node {node}: there is none"))
    }

    /// The slot of a key: that of its part in braces, where it has one.
    ///
    /// # Errors
    /// Where no node runs.
    pub fn slot_of(&self, key: &str) -> anyhow::Result<u16> {
        let node = self.running().next().context("no node runs")?;
        node.command(&["CLUSTER", "KEYSLOT", key])?.parse().context("a slot")
    }

    /// The node that says it is the master of a key.
    ///
    /// # Errors
    /// Where none that runs says so.
    pub fn master_of(&self, key: &str) -> anyhow::Result<usize> {
        self.master_of_slot(self.slot_of(key)?)
    }

    /// The node that says it is the master of a slot.
    ///
    /// # Errors
    /// Where none that runs says so.
    pub fn master_of_slot(&self, slot: u16) -> anyhow::Result<usize> {
        for (number, node) in self.nodes.iter().enumerate().filter(|(_, node)| node.is_running()) {
            if members(node)?.iter().any(|member| member.is_myself && member.has(slot)) {
                return Ok(number);
            }
        }
        bail!("slot {slot} has no master that runs")
    }

    /// Kills the master of a key, and says which node it was. Without a replica, or without
    /// `appendonly yes` and a [`RedisCluster::restart`] before one takes over, its data is lost.
    ///
    /// # Errors
    /// Where none that runs is its master.
    pub fn kill_master_of(&mut self, key: &str) -> anyhow::Result<usize> {
        let master = self.master_of(key)?;
        self.node_mut(master)?.kill()?;
        Ok(master)
    }

    /// Waits until all slots have a master that runs again, and says which is the key's.
    ///
    /// # Errors
    /// Where that does not come about in a minute.
    pub fn await_failover(&self, key: &str) -> anyhow::Result<usize> {
        self.await_ok()?;
        self.master_of(key)
    }

    /// Kills the master of a key and its replicas, so that no node serves its slots; returns which nodes
    /// they were.
    ///
    /// # Errors
    /// Where none that runs is its master.
    pub fn stop_shard(&mut self, key: &str) -> anyhow::Result<Vec<usize>> {
        let master = self.master_of(key)?;
        let replicas = self.replicas_of(master)?;
        // Replicas first: none shall take over.
        let shard: Vec<usize> = replicas.into_iter().chain([master]).collect();
        for node in &shard {
            self.node_mut(*node)?.kill()?;
        }
        Ok(shard)
    }

    /// The running replicas of a master.
    ///
    /// # Errors
    /// Where nodes do not answer.
    pub fn replicas_of(&self, master: usize) -> anyhow::Result<Vec<usize>> {
        let port = self.node(master)?.port().to_string();
        let mut replicas = Vec::new();
        for (number, node) in self.nodes.iter().enumerate().filter(|(_, node)| node.is_running()) {
            let about = node.command(&["INFO", "replication"])?;
            if value_of(&about, "master_port") == Some(&port) {
                replicas.push(number);
            }
        }
        Ok(replicas)
    }

    /// Waits until the running replicas of a key's master have all that it has: what they have not is
    /// lost if it dies. (`WAIT` waits for the writes of its own connection only.)
    ///
    /// # Errors
    /// Where that does not come about in a minute.
    pub fn await_replicas(&self, key: &str) -> anyhow::Result<()> {
        let master = self.master_of(key)?;
        let replicas = self.replicas_of(master)?;
        let offset = |node: usize, field: &str| {
            let about = self.node(node)?.command(&["INFO", "replication"])?;
            value_of(&about, field).context("an offset")?.parse::<u64>().context("an offset")
        };
        let written = offset(master, "master_repl_offset")?;
        let is_there = || {
            let has = |node: &usize| offset(*node, "slave_repl_offset").is_ok_and(|o| o >= written);
            replicas.iter().all(has)
        };
        ensure!(await_that(PATIENCE, is_there), "the replicas of node {master} lag behind");
        Ok(())
    }

    /// Starts a node again that was killed or stopped; what it finds itself to be takes a moment, see
    /// [`RedisCluster::await_ok`].
    ///
    /// # Errors
    /// Where it does not come up, with its log.
    pub fn restart(&mut self, node: usize) -> anyhow::Result<()> {
        self.node_mut(node)?.resume()
    }

    /// Waits until the cluster is whole: nodes that run agree whose each slot is, each such master
    /// runs, and each running replica follows its master.
    ///
    /// # Errors
    /// Where that does not come about in a minute, with what is wrong.
    pub fn await_ok(&self) -> anyhow::Result<()> {
        let mut wrong = String::new();
        let is_ok = || self.check().map_err(|error| wrong = format!("{error:#}")).is_ok();
        ensure!(await_that(PATIENCE, is_ok), "the cluster is not whole: {wrong}");
        Ok(())
    }

    fn check(&self) -> anyhow::Result<()> {
        let mut agreed: Option<Vec<(u16, Slots)>> = None;
        for node in self.running() {
            let state = node.command(&["CLUSTER", "INFO"])?;
            let state = value_of(&state, "cluster_state").unwrap_or_default();
            ensure!(state == "ok", "cluster_state of {} is {state}", node.address());
            let link = node.command(&["INFO", "replication"])?;
            let link = value_of(&link, "master_link_status").unwrap_or("up");
            ensure!(link == "up", "master_link_status of {} is {link}", node.address());
            let members = members(node)?;
            ensure!(members.len() == self.nodes.len(), "{} does not know all", node.address());
            let masters = members.into_iter().filter(|one| one.is_master && !one.slots.is_empty());
            let mut view: Vec<_> = masters.map(|one| (one.port, one.slots)).collect();
            view.sort();
            for (port, _) in &view {
                let runs = self.running().any(|other| other.port() == *port);
                ensure!(runs, "{} takes port {port} for a master", node.address());
            }
            ensure!(agreed.get_or_insert_with(|| view.clone()) == &view, "nodes disagree");
        }
        agreed.map(drop).context("no node runs")
    }

    /// Moves a slot with its keys to another master, as an operator would while clients go on; also
    /// ends what [`RedisCluster::half_move_slot`] began.
    ///
    /// # Errors
    /// Where one of the nodes does not do its part.
    pub fn move_slot(&self, slot: u16, to: usize) -> anyhow::Result<()> {
        let from = self.master_of_slot(slot)?;
        self.begin_move(slot, from, to)?;
        while self.move_keys(slot, from, to, KEYS)? > 0 {}
        let (from, to) = (self.node(from)?, self.node(to)?);
        let id = myself(to)?.id;
        // The new master first: else no node has the slot for a moment. Masters notify their replicas.
        let others = self.running().filter(|node| ![from.port(), to.port()].contains(&node.port()));
        for node in [to, from].into_iter().chain(others) {
            if myself(node)?.is_master {
                node.command(&["CLUSTER", "SETSLOT", &slot.to_string(), "NODE", &id])?;
            }
        }
        self.await_ok()
    }

    /// Begins to move a slot, and stops when half of its keys are there, so that clients are sent
    /// from one node to the other by `ASK`; commands on keys of both halves get `TRYAGAIN`.
    ///
    /// # Errors
    /// Where one of the nodes does not do its part.
    pub fn half_move_slot(&self, slot: u16, to: usize) -> anyhow::Result<()> {
        let from = self.master_of_slot(slot)?;
        self.begin_move(slot, from, to)?;
        let count = self.node(from)?.command(&["CLUSTER", "COUNTKEYSINSLOT", &slot.to_string()])?;
        let half = count.parse::<usize>()?.div_ceil(2);
        self.move_keys(slot, from, to, half).map(drop)
    }

    fn begin_move(&self, slot: u16, from: usize, to: usize) -> anyhow::Result<()> {
        ensure!(from != to, "slot {slot} is node {to}'s already");
        let (from, to, slot) = (self.node(from)?, self.node(to)?, slot.to_string());
        to.command(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &myself(from)?.id])?;
        from.command(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &myself(to)?.id])?;
        Ok(())
    }

    /// Moves at most `most` keys, and returns how many there were.
    fn move_keys(&self, slot: u16, from: usize, to: usize, most: usize) -> anyhow::Result<usize> {
        let (from, to) = (self.node(from)?, self.node(to)?);
        // Keys are bytes: they are read and handed back as quoted strings.
        let ask = ["CLUSTER", "GETKEYSINSLOT", &slot.to_string(), &most.to_string()];
        let listed = from.cli(&["--no-raw"], &ask)?;
        let keys: Vec<&str> =
            listed.lines().filter_map(|line| Some(line.split_once(") ")?.1)).collect();
        if keys.is_empty() {
            return Ok(0);
        }
        let port = to.port().to_string();
        let mut words = vec!["MIGRATE", "127.0.0.1", &port, "\"\"", "0", "5000"];
        words.extend(to.password().map(|password| ["AUTH", password]).into_iter().flatten());
        words.push("KEYS");
        from.cli(&["--quoted-input"], &[&words[..], &keys].concat())?;
        Ok(keys.len())
    }

    fn running(&self) -> impl Iterator<Item = &Redis> {
        self.nodes.iter().filter(|node| node.is_running())
    }
}

/// The value of a field in an answer of lines.
fn value_of<'a>(answer: &'a str, field: &str) -> Option<&'a str> {
    let mut fields = answer.lines().filter_map(|line| line.trim_end().split_once(':'));
    fields.find(|(name, _)| *name == field).map(|(_, value)| value)
}

fn myself(node: &Redis) -> anyhow::Result<Member> {
    let mut members = members(node)?.into_iter();
    members.find(|member| member.is_myself).context("a node that does not know itself")
}

fn members(node: &Redis) -> anyhow::Result<Vec<Member>> {
    let answer = node.command(&["CLUSTER", "NODES"])?;
    answer.lines().map(|line| member(line).with_context(|| line.to_owned())).collect()
}

/// A line of `CLUSTER NODES`.
fn member(line: &str) -> Option<Member> {
    let mut words = line.split_whitespace();
    let id = words.next()?.to_owned();
    let (_, port) = words.next()?.split_once('@')?.0.rsplit_once(':')?;
    let flags: Vec<&str> = words.next()?.split(',').collect();
    let ranges = words.skip(5).filter(|word| !word.starts_with('['));
    let range = |word: &str| {
        let (first, last) = word.split_once('-').unwrap_or((word, word));
        Some((first.parse().ok()?, last.parse().ok()?))
    };
    Some(Member {
        id,
        port: port.parse().ok()?,
        is_myself: flags.contains(&"myself"),
        is_master: flags.contains(&"master"),
        slots: ranges.map(range).collect::<Option<_>>()?,
    })
}
