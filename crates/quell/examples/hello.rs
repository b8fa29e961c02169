//! The smallest whole program: three triggers of one key, one run.
#![expect(clippy::print_stdout, reason = "an example speaks")]
use std::time::Duration;

use quell::{Ctx, Policy, Quell, Task, TaskError};

#[derive(serde::Serialize, serde::Deserialize)]
struct Greet(String);

impl Task for Greet {
    const NAME: &'static str = "greet";
    type Output = ();
    fn policy() -> Policy {
        Policy::default().debounce(Duration::from_secs(1)..=Duration::from_secs(5))
    }
    fn debounce_key(&self) -> Option<String> {
        Some(self.0.clone())
    }
}

async fn greet(task: Greet, ctx: Ctx<()>) -> Result<(), TaskError> {
    println!("hello, {} (one run for {} triggers)", task.0, ctx.triggers());
    Ok(())
}

#[tokio::main]
async fn main() -> quell::Result<()> {
    let quell = Quell::open("sqlite://hello.db").await?;
    quell.trigger_many(["you", "you", "you"].map(|name| Greet(name.into()))).await?;
    let enough = tokio::time::sleep(Duration::from_secs(3));
    quell.worker(()).register(greet).run_until(enough).await
}
