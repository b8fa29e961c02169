use quell::{Ctx, Quell, Task, TaskError};

#[derive(serde::Serialize, serde::Deserialize)]
struct Mail;

impl Task for Mail {
    const NAME: &'static str = "mail";
    type Output = ();
}

async fn takes_no_context(_: Mail) -> Result<(), TaskError> {
    Ok(())
}

async fn takes_no_task(_: String, _: Ctx<()>) -> Result<(), TaskError> {
    Ok(())
}

fn register(quell: &Quell) {
    let _ = quell.worker(()).register(takes_no_context);
    let _ = quell.worker(()).register(takes_no_task);
}

fn main() {}
