//! A Redis Cluster: a replica takes over, shards go and come back, slots move with their keys.

use quell_services::RedisCluster;

#[test]
fn a_replica_takes_over_with_what_its_master_had() {
    let mut cluster = RedisCluster::start(3, 1, &[]).unwrap();
    assert_eq!(cluster.addresses().len(), 6);
    let master = cluster.master_of("a").unwrap();
    let replicas = cluster.replicas_of(master).unwrap();
    let node = cluster.node(master).unwrap();
    assert_eq!(node.command(&["SET", "a", "1"]).unwrap(), "OK");
    cluster.await_replicas("a").unwrap();
    assert_eq!(cluster.kill_master_of("a").unwrap(), master);
    assert!(cluster.master_of("a").is_err(), "its master is dead");
    let next = cluster.await_failover("a").unwrap();
    assert_eq!(replicas, [next]);
    assert_eq!(cluster.node(next).unwrap().command(&["GET", "a"]).unwrap(), "1");
    cluster.restart(master).unwrap();
    cluster.await_ok().unwrap();
    assert_eq!(cluster.master_of("a").unwrap(), next);
    assert_eq!(cluster.replicas_of(next).unwrap(), [master]);
}

#[test]
fn fewer_than_three_masters_make_a_cluster_too_but_none_with_replicas() {
    for masters in [1, 2] {
        let cluster = RedisCluster::start(masters, 0, &[]).unwrap();
        let has_all = |slot: &u16| cluster.master_of_slot(*slot).is_ok();
        assert!([0, 8_191, 8_192, 16_383].iter().all(has_all));
        let of_ends = [0, 16_383].map(|slot| cluster.master_of_slot(slot).unwrap());
        assert_eq!(of_ends, [0, masters - 1]);
    }
    assert!(RedisCluster::start(2, 1, &[]).is_err());
}

#[test]
fn a_shard_goes_and_comes_back_with_its_data() {
    let mut cluster = RedisCluster::start(3, 0, &["appendonly yes"]).unwrap();
    let master = cluster.master_of("a").unwrap();
    cluster.node(master).unwrap().command(&["SET", "a", "1"]).unwrap();
    let shard = cluster.stop_shard("a").unwrap();
    assert_eq!(shard, [master]);
    cluster.restart(master).unwrap();
    cluster.await_ok().unwrap();
    assert_eq!(cluster.node(master).unwrap().command(&["GET", "a"]).unwrap(), "1");
}

#[test]
fn a_slot_moves_with_its_keys_and_can_stand_half_way() {
    let cluster = RedisCluster::start(3, 0, &["requirepass secret"]).unwrap();
    let from = cluster.master_of("{a}").unwrap();
    let to = (from + 1) % 3;
    let slot = cluster.slot_of("{a}").unwrap();
    let (old, new) = (cluster.node(from).unwrap(), cluster.node(to).unwrap());
    // More than one round of keys, one with what a shell or a line would trip over.
    let odd = "{a} \"quoted\"\n2) \\ é";
    old.command(&["SET", odd, "odd"]).unwrap();
    for n in 0..250 {
        old.command(&["SET", &format!("{{a}}{n}"), "1"]).unwrap();
    }
    let count = |node: &quell_services::Redis| {
        node.command(&["CLUSTER", "COUNTKEYSINSLOT", &slot.to_string()]).unwrap()
    };

    cluster.half_move_slot(slot, to).unwrap();
    assert_eq!((count(old), count(new)), ("125".to_owned(), "126".to_owned()));
    assert_eq!(cluster.master_of("{a}").unwrap(), from);
    let asked = old.command(&["SET", "{a}new", "1"]).unwrap_err().to_string();
    assert!(asked.contains(&format!("ASK {slot} {}", new.address())), "{asked}");

    cluster.move_slot(slot, to).unwrap();
    assert_eq!((count(old), count(new)), ("0".to_owned(), "251".to_owned()));
    assert_eq!(cluster.master_of("{a}").unwrap(), to);
    assert_eq!(new.command(&["GET", odd]).unwrap(), "odd");
    let moved = old.command(&["GET", "{a}1"]).unwrap_err().to_string();
    assert!(moved.contains("MOVED"), "{moved}");
}
