//! How calls that are no step of the engine begin, retry and end: in a transaction that writes, or on
//! one state of the store.

/// One transaction, from begin to commit; it is retried after a write conflict.
macro_rules! writing {
    ($self:ident $(on $pool:ident)?, $now:expr, |$tx:ident| $body:expr) => {
        writing!($self $(on $pool)?, $now, |_asked| None, |$tx| $body)
    };
    ($self:ident, $now:expr, |$asked:ident| $opening:expr, |$tx:ident| $body:expr) => {
        writing!($self on pool, $now, |$asked| $opening, |$tx| $body)
    };
    ($self:ident on $pool:ident, $now:expr, |$asked:ident| $opening:expr, |$tx:ident| $body:expr) => {{
        let mut tries = $crate::tries::Tries::new();
        loop {
            let $asked = $self.asked($now);
            let (history, opening) = ($self.history.is_some(), $opening);
            let begun = $crate::tx::Tx::begin(
                &$self.$pool, (&$self.sql, &$self.names), $asked, history, opening,
            );
            let mut $tx = match begun.await {
                Ok(tx) => tx,
                // It may have locked windows.
                Err(error) if $crate::error::wants_retry(&error) && tries.again().await => continue,
                Err(error) => break Err(error),
            };
            let done: quell_core::Result<_> = async { Ok($body) }.await;
            let error = match done {
                Ok(answer) => {
                    let now = $tx.now;
                    let _ordered = match &$self.order {
                        Some(order) => Some(order.lock().await),
                        None => None,
                    };
                    match $tx.commit().await {
                        Ok(news) => {
                            $self.publish(now, news);
                            break Ok(answer);
                        }
                        Err(error) => error,
                    }
                }
                Err(error) => {
                    let unnamed = std::mem::take(&mut $tx.unnamed);
                    $tx.roll_back().await;
                    if !unnamed.is_empty() && tries.again().await {
                        $self.intern(unnamed).await?;
                        continue;
                    }
                    error
                }
            };
            if !$crate::error::wants_retry(&error) || !tries.again().await {
                break Err(error);
            }
        }
    }};
}

/// An answer from one state of the store; `long` where that may take a while and no job waits for it.
macro_rules! reading {
    ($self:ident, |$reader:ident| $asked:expr) => {
        reading!($self, $self.pool.begin("begin to read", $crate::read::BEGIN), |$reader| $asked)
    };
    ($self:ident, long, |$reader:ident| $asked:expr) => {
        reading!(
            $self,
            $self.upkeep.begin_long("begin to read", $crate::read::BEGIN_LONG),
            |$reader| { $asked }
        )
    };
    ($self:ident, $begun:expr, |$reader:ident| $asked:expr) => {{
        let (mut db, _) = $begun.await?;
        let mut $reader = $crate::read::Reader::new(&mut db, &$self.sql, &$self.names);
        let answer = $asked.await;
        if $reader.end().await.is_ok() {
            db.release();
        }
        answer
    }};
}
