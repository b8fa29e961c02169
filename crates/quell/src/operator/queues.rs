//! What operators do to queues and tasks while everything runs (R31–R33): settings, pause, resume.
//!
//! Settings live in the store, so that each process sees them, and take hold at the next claim.

use quell_core::{
    Backlog, BacklogOf, Error, ErrorKind, QueueInfo, QueueName, QueueSettings, Result, TaskInfo,
    TaskName, TaskSettings,
};

use crate::{Quell, Task};

/// How often a change of settings is tried, while others change them too.
const CHANGE_ATTEMPTS: u32 = 16;

/// One queue, by its name: what [`Quell::queue`] returns.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> quell::Result<()> {
/// use std::time::Duration;
/// use quell::Quell;
/// use quell::queue::{QueueSettings, Rate};
///
/// let quell = Quell::open("memory:").await?;
/// let rate = Some(Rate { limit: 100, period: Duration::from_secs(60) });
/// let billing = quell.queue("billing");
/// billing.set(&QueueSettings { concurrency: Some(8), rate, ..QueueSettings::default() }).await?;
/// billing.pause().await?;
/// assert!(quell.queues().await?[0].settings.paused);
/// billing.resume().await?;
/// assert!(billing.delete().await?);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Queue<'a> {
    quell: &'a Quell,
    name: Result<QueueName, String>,
}

impl Quell {
    /// The queues there are, with their settings.
    ///
    /// # Errors
    /// What the store says.
    pub async fn queues(&self) -> Result<Vec<QueueInfo>> {
        self.store().queues().await
    }

    /// A queue by its name; it need not be there yet.
    #[must_use]
    pub fn queue(&self, name: impl AsRef<str>) -> Queue<'_> {
        Queue { quell: self, name: QueueName::new(name).map_err(|error| error.to_string()) }
    }

    /// The tasks there are, with their settings.
    ///
    /// # Errors
    /// What the store says.
    pub async fn tasks(&self) -> Result<Vec<TaskInfo>> {
        self.store().tasks().await
    }

    /// Lets no attempt of a task start, in any queue, until it is resumed (R33).
    ///
    /// # Errors
    /// What the store says.
    pub async fn pause<T: Task>(&self) -> Result<()> {
        self.pause_task(&TaskName::new(T::NAME)?, None).await
    }

    /// Pauses a task as [`pause`](Self::pause) does, and notes who did: a text of at most 255 bytes, which
    /// [`tasks`](Self::tasks) and [`why_waiting`](Self::why_waiting) show.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a longer text; else the error of the store.
    pub async fn pause_by<T: Task>(&self, by: impl Into<String>) -> Result<()> {
        self.pause_task(&TaskName::new(T::NAME)?, Some(by.into())).await
    }

    /// Lets attempts of a paused task start again (R33).
    ///
    /// # Errors
    /// What the store says.
    pub async fn resume<T: Task>(&self) -> Result<()> {
        let open = |settings| Ok::<_, Error>(TaskSettings { paused: false, ..settings });
        self.change_task(&TaskName::new(T::NAME)?, open).await.map(drop)
    }

    async fn pause_task(&self, task: &TaskName, paused_by: Option<String>) -> Result<()> {
        let pause = |settings| {
            let paused_by = paused_by.clone();
            Ok::<_, Error>(TaskSettings { paused: true, paused_by, ..settings })
        };
        self.change_task(task, pause).await.map(drop)
    }

    /// Changes the settings of a task, from those that are there, the default ones where there is no
    /// such task; returns the new ones. What other operators change meanwhile stays.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> quell::Result<()> {
    /// use std::time::Duration;
    /// use quell::{Quell, TaskName};
    /// use quell::queue::TaskSettings;
    /// use quell::trigger::Thresholds;
    ///
    /// let quell = Quell::open("memory:").await?;
    /// let task = TaskName::new("mail")?;
    /// // Thresholds that count in place of those that the task declares, in every process (R14).
    /// let set = Thresholds::new(Duration::from_secs(30), Duration::from_secs(300))?;
    /// let change = |settings: TaskSettings| Ok::<_, quell::Error>(settings.debounce(set));
    /// assert_eq!(quell.change_task(&task, change).await?.debounce, Some(set));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// What `change` returns; [`ErrorKind::Invalid`] as for [`TaskSettings::validate`],
    /// [`ErrorKind::Contention`] where the settings change again and again; else the error of the store.
    pub async fn change_task<E: From<Error>>(
        &self,
        task: &TaskName,
        change: impl Fn(TaskSettings) -> Result<TaskSettings, E>,
    ) -> Result<TaskSettings, E> {
        for _ in 0..CHANGE_ATTEMPTS {
            let known = self.task_settings(task).await?;
            let settings = change(known.clone())?;
            let now = self.clock().store_time();
            if self.store().replace_task(now, task, &known, &settings).await? {
                self.forget_thresholds(task);
                return Ok(settings);
            }
        }
        let message = format!("the settings of task {task} change again and again: try again");
        Err(Error::new(ErrorKind::Contention, message).into())
    }

    /// The settings of a task; the default ones where there is no such task.
    ///
    /// # Errors
    /// What the store says.
    pub async fn task_settings(&self, task: &TaskName) -> Result<TaskSettings> {
        let known = self.store().task_settings(std::slice::from_ref(task)).await?;
        Ok(known.into_iter().next().map(|info| info.settings).unwrap_or_default())
    }

    /// Sets all settings of a task by its name, in place of what was set before: also a pause (R33) and
    /// thresholds (R14).
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] as for [`TaskSettings::validate`]; else the error of the store.
    pub async fn set_task(&self, task: &TaskName, settings: &TaskSettings) -> Result<()> {
        self.store().set_task(self.clock().store_time(), task, settings).await?;
        self.forget_thresholds(task);
        Ok(())
    }
}

impl Queue<'_> {
    /// Its settings; none where there is no such queue, or it was deleted.
    ///
    /// # Errors
    /// What the store says.
    pub async fn settings(&self) -> Result<Option<QueueSettings>> {
        let name = self.name()?;
        let known = self.quell.queues().await?.into_iter().find(|queue| queue.name == *name);
        Ok(known.map(|queue| queue.settings))
    }

    /// Its partitions with the most waiting jobs, 50 at most: how many wait and run in each. The look is
    /// bounded, so of a long backlog it sees a part and says so.
    ///
    /// # Errors
    /// What the store says.
    pub async fn backlog(&self) -> Result<Backlog> {
        let of = BacklogOf::new(self.name()?.clone());
        self.quell.store().backlog(self.quell.clock().store_time(), &of).await
    }

    /// Sets it, in place of what was set before (R32); makes it where there is none.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] as for [`QueueSettings::validate`]; else the error of the store.
    pub async fn set(&self, settings: &QueueSettings) -> Result<()> {
        let name = self.name()?;
        self.quell.store().set_queue(self.quell.clock().store_time(), name, settings).await
    }

    /// Sets it if its settings are still those that the caller read; none stands for a queue that is
    /// not there (R32). Returns whether it did.
    ///
    /// # Errors
    /// As for [`set`](Self::set).
    pub async fn replace(
        &self,
        known: Option<&QueueSettings>,
        settings: &QueueSettings,
    ) -> Result<bool> {
        let now = self.quell.clock().store_time();
        self.quell.store().replace_queue(now, self.name()?, known, settings).await
    }

    /// Lets no attempt start until it is resumed; triggers are accepted and wait (R33).
    ///
    /// The other settings stay as they are, also where another operator changes them meanwhile.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] where there is no such queue, [`ErrorKind::Contention`] where its
    /// settings change again and again; else the error of the store.
    pub async fn pause(&self) -> Result<()> {
        self.set_paused(true, None).await
    }

    /// Pauses it as [`pause`](Self::pause) does, and notes who did: a text of at most 255 bytes, which
    /// [`settings`](Self::settings) and [`Quell::why_waiting`] show.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a longer text; else as for [`pause`](Self::pause).
    pub async fn pause_by(&self, by: impl Into<String>) -> Result<()> {
        self.set_paused(true, Some(by.into())).await
    }

    /// Lets attempts start again (R33), as [`pause`](Self::pause) stops them.
    ///
    /// # Errors
    /// As for [`pause`](Self::pause).
    pub async fn resume(&self) -> Result<()> {
        self.set_paused(false, None).await
    }

    /// Deletes its settings: nothing starts until it is set again (R32). Says whether there was
    /// such a queue.
    ///
    /// # Errors
    /// What the store says.
    pub async fn delete(&self) -> Result<bool> {
        self.quell.store().delete_queue(self.quell.clock().store_time(), self.name()?).await
    }

    async fn set_paused(&self, paused: bool, by: Option<String>) -> Result<()> {
        let change = |settings| {
            let paused_by = by.clone();
            Ok(QueueSettings { paused, paused_by, ..settings })
        };
        self.change(change).await.map(drop)
    }

    /// Changes its settings, from those that are there; returns the new ones.
    ///
    /// # Errors
    /// What `change` returns, and as for [`pause`](Self::pause).
    pub async fn change<E: From<Error>>(
        &self,
        change: impl Fn(QueueSettings) -> Result<QueueSettings, E>,
    ) -> Result<QueueSettings, E> {
        let name = self.name()?;
        for _ in 0..CHANGE_ATTEMPTS {
            let Some(known) = self.settings().await? else {
                let message = format!("there is no queue {name}: set it first");
                return Err(Error::new(ErrorKind::NotFound, message).into());
            };
            let settings = change(known.clone())?;
            if self.replace(Some(&known), &settings).await? {
                return Ok(settings);
            }
        }
        let message = format!("the settings of queue {name} change again and again: try later");
        Err(Error::new(ErrorKind::Contention, message).into())
    }

    fn name(&self) -> Result<&QueueName> {
        self.name.as_ref().map_err(|message| Error::invalid("queue", message.clone()))
    }
}
