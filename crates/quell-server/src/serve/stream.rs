//! The bytes of a connection: plain, by TLS or of a Unix socket, with a bound on how long its reader may stand still.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// How long a response may wait for its reader without any progress.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// Bytes both ways.
pub(super) trait Bytes: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Bytes for T {}

/// A stream that fails once its reader takes nothing for too long.
pub(super) struct Stream {
    inner: Box<dyn Bytes>,
    patience: Duration,
    /// Runs while nothing can be written.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl Stream {
    pub(super) fn new(inner: impl Bytes + 'static) -> Self {
        Stream { inner: Box::new(inner), patience: WRITE_TIMEOUT, stalled: None }
    }

    /// What a write came to, or the end of its patience.
    fn bounded<T>(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let patience = self.patience;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(patience)));
        match stalled.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(context, buffer)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write(context, bytes);
        self.bounded(context, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.inner).poll_flush(context);
        self.bounded(context, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let ended = Pin::new(&mut self.inner).poll_shutdown(context);
        self.bounded(context, ended)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write_vectored(context, parts);
        self.bounded(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::*;

    #[tokio::test]
    async fn a_response_that_is_not_read_ends_and_one_that_is_read_slowly_goes_on() {
        let bytes = [7; 64];
        for (reads, most) in [(false, 8), (true, 64)] {
            let (own, mut other) = duplex(8);
            let mut stream = Stream { patience: Duration::from_millis(300), ..Stream::new(own) };
            let read = async {
                let mut read = 0;
                let mut buffer = [0; 4];
                while reads && read < bytes.len() {
                    tokio::task::yield_now().await;
                    read += other.read(&mut buffer).await.unwrap();
                }
                read
            };
            let (written, read) = tokio::join!(stream.write_all(&bytes), read);
            assert_eq!(written.is_ok(), reads, "{written:?}");
            assert!(
                read <= most && (reads || written.unwrap_err().kind() == io::ErrorKind::TimedOut)
            );
        }
    }
}
