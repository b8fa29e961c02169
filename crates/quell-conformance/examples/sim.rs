//! Runs seeds of the simulation and judges each: `cargo xtask sim` passes its arguments on.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "it is a command")]

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use quell_conformance::bugs::{Bug, Buggy};
use quell_conformance::check::{Line, Report, check};
use quell_conformance::sim::{self, Plan, START};

/// What the command line asks for.
#[derive(Debug)]
struct Args {
    from: u64,
    seeds: u64,
    bug: Option<&'static Bug>,
    plan: Option<String>,
    history: Option<String>,
    minimise: bool,
    bugs: bool,
}

const USAGE: &str = "usage: sim [--seed N | --from N --seeds N] [--plan FILE] [--history FILE] \
                     [--minimise] [--bug NAME] [--bugs]";

fn main() -> ExitCode {
    match args(std::env::args().skip(1)) {
        Ok(args) if args.bugs => bugs(&args),
        Ok(args) if args.seeds == 1 || args.plan.is_some() => one(&args),
        Ok(args) => many(&args),
        Err(why) => {
            eprintln!("{why}\n{USAGE}");
            ExitCode::from(2)
        }
    }
}

fn args(mut given: impl Iterator<Item = String>) -> Result<Args, String> {
    let mut args = Args {
        from: 0,
        seeds: 10_000,
        bug: None,
        plan: None,
        history: None,
        minimise: false,
        bugs: false,
    };
    while let Some(name) = given.next() {
        if name == "--minimise" {
            args.minimise = true;
            continue;
        }
        if name == "--bugs" {
            args.bugs = true;
            continue;
        }
        let value = given.next().ok_or_else(|| format!("{name} wants a value"))?;
        let number = || value.parse().map_err(|_| format!("{name} {value} is no number"));
        match name.as_str() {
            "--seed" => (args.from, args.seeds) = (number()?, 1),
            "--from" => args.from = number()?,
            "--seeds" => args.seeds = number()?,
            "--plan" => args.plan = Some(value),
            "--history" => args.history = Some(value),
            "--bug" => {
                let named = Bug::named(&value).ok_or(format!("no bug is called {value}"))?;
                args.bug = Some(named);
            }
            _ => return Err(format!("{name} is not known")),
        }
    }
    Ok(args)
}

fn judged(plan: &Plan, bug: Option<&'static Bug>) -> (Vec<Line>, Report) {
    let lines = sim::run(plan, |sink| match bug {
        None => sim::memory(sink),
        Some(bug) => Arc::new(Buggy::new(bug, START, sink)),
    });
    let report = check(&lines);
    (lines, report)
}

/// One run in full: its plan and history, what is wrong, and a smaller plan that shows it too.
fn one(args: &Args) -> ExitCode {
    let plan = match &args.plan {
        Some(path) if args.seeds != 1 => match read(path) {
            Ok(plan) => plan,
            Err(why) => {
                eprintln!("{path}: {why}");
                return ExitCode::from(2);
            }
        },
        _ => Plan::draw(args.from),
    };
    let (mut plan, (mut lines, mut report)) = (plan.clone(), judged(&plan, args.bug));
    if let Some(first) = report.violations.first().filter(|_| args.minimise) {
        let property = first.property;
        plan = sim::minimise(&plan, |plan| judged(plan, args.bug).1.broke(property));
        (lines, report) = judged(&plan, args.bug);
        println!("smallest plan for {property}: {plan:#?}");
    }
    let text = |lines: &[Line]| lines.iter().map(|line| format!("{line}\n")).collect::<String>();
    let wrote = args.history.as_ref().map(|path| std::fs::write(path, text(&lines)));
    let drawn = args.plan.as_ref().filter(|_| args.seeds == 1).map(|path| {
        let json = serde_json::to_vec_pretty(&plan).unwrap_or_default();
        std::fs::write(path, json)
    });
    if let Some(failed) = [wrote, drawn].into_iter().flatten().find_map(Result::err) {
        eprintln!("a file could not be written: {failed}");
        return ExitCode::from(2);
    }
    println!(
        "seed {}: {} events, {} triggers accepted, {} attempts, {} violations",
        plan.seed,
        report.events,
        report.accepted,
        report.attempts,
        report.violations.len()
    );
    print!("{}{}", report.table(), report.text(&lines));
    if report.violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn read(path: &str) -> Result<Plan, String> {
    let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
    serde_json::from_str(&text).map_err(|error| error.to_string())
}

/// The properties that a report says are broken.
fn broken(report: &Report) -> Vec<&'static str> {
    let mut broken: Vec<_> = report.violations.iter().map(|v| v.property).collect();
    broken.sort_unstable();
    broken.dedup();
    broken
}

/// The table of bugs: which property catches each, in what share of the seeds, and which others do.
fn bugs(args: &Args) -> ExitCode {
    println!("| seeded bug | property | caught in | others in |\n| --- | --- | --- | --- |");
    let chosen = |bug: &&Bug| args.bug.is_none_or(|chosen| chosen.name == bug.name);
    for bug in Bug::all().filter(|bug| !bug.checker.is_empty()).filter(chosen) {
        let properties = bug.checker;
        let mut by_property = std::collections::BTreeMap::<_, u64>::new();
        let (mut caught, mut first) = (0_u64, None);
        for seed in args.from..args.from.saturating_add(args.seeds) {
            let broken = broken(&judged(&Plan::draw(seed), Some(bug)).1);
            if broken.iter().any(|property| properties.contains(property)) {
                caught += 1;
                first = first.or(Some(seed));
            }
            let others = broken.into_iter().filter(|property| !properties.contains(property));
            others.for_each(|property| *by_property.entry(property).or_default() += 1);
        }
        let share = |count: u64| format!("{:.1} %", count as f64 * 100.0 / args.seeds as f64);
        let others: Vec<String> = by_property
            .into_iter()
            .map(|(property, count)| format!("{property} {}", share(count)))
            .collect();
        let (own, others) = (properties.join(", "), others.join(", "));
        let what = bug.what;
        println!("| {what} | {own} | {} (first {first:?}) | {others} |", share(caught));
    }
    ExitCode::SUCCESS
}

/// Many seeds; the first that fails is shown with how to run it again.
fn many(args: &Args) -> ExitCode {
    let began = Instant::now();
    let (mut total, mut failed) = (Report::default(), Vec::new());
    let mut by_property = std::collections::BTreeMap::new();
    for seed in args.from..args.from.saturating_add(args.seeds) {
        let (lines, report) = judged(&Plan::draw(seed), args.bug);
        total.add(&report);
        if let Some(first) = report.violations.first() {
            if failed.is_empty() && args.bug.is_none() {
                let (property, shown) = (first.property, report.text(&lines));
                println!("seed {seed} breaks {property}:\n{shown}");
                println!("again: cargo xtask sim --seed {seed} --minimise --history FILE");
            }
            failed.push(seed);
        }
        for property in broken(&report) {
            *by_property.entry(property).or_insert(0_u64) += 1;
        }
    }
    let took = began.elapsed();
    let Report { events, accepted, attempts, .. } = total;
    print!("{}", total.table());
    let a_minute = args.seeds as f64 / took.as_secs_f64() * 60.0;
    println!(
        "{} seeds, {accepted} triggers, {attempts} attempts, {events} events in {:.1} s \
         ({a_minute:.0} a minute); {} failed {by_property:?}",
        args.seeds,
        took.as_secs_f64(),
        failed.len(),
    );
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
