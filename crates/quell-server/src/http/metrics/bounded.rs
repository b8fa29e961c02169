//! A recorder with a bound on the values of labels: a page must not grow with what callers or configurations name.

use std::collections::HashSet;
use std::sync::{PoisonError, RwLock};

use metrics::{
    Counter, Gauge, Histogram, Key, KeyName, Label, Metadata, Recorder, SharedString, Unit,
};

use super::OTHER;

/// Labels with few values, all of them in the code.
const FEW: [&str; 2] = ["outcome", "signal"];

/// Passes measurements on, under the shared name where there are too many names.
pub(super) struct Bounded<R> {
    inner: R,
    most: usize,
    /// The names that have lines of their own: the labels of one line, without those with few values.
    named: RwLock<HashSet<Vec<Label>>>,
}

impl<R> Bounded<R> {
    pub(super) fn new(inner: R, most: usize) -> Self {
        Bounded { inner, most, named: RwLock::default() }
    }

    /// Whether these labels have lines of their own, or get them now.
    fn names(&self, labels: Vec<Label>) -> bool {
        if self.named.read().unwrap_or_else(PoisonError::into_inner).contains(&labels) {
            return true;
        }
        let mut named = self.named.write().unwrap_or_else(PoisonError::into_inner);
        if named.len() < self.most {
            named.insert(labels);
            return true;
        }
        named.contains(&labels)
    }

    /// The key of the shared line, where this one has none of its own.
    fn shared(&self, key: &Key) -> Option<Key> {
        let is_bounded = |label: &&Label| !FEW.contains(&label.key());
        let of_many: Vec<Label> = key.labels().filter(is_bounded).cloned().collect();
        if of_many.is_empty() || self.names(of_many) {
            return None;
        }
        let other = |label: &Label| {
            if FEW.contains(&label.key()) {
                label.clone()
            } else {
                Label::new(label.key().to_owned(), OTHER)
            }
        };
        let labels: Vec<Label> = key.labels().map(other).collect();
        Some(Key::from_parts(key.name().to_owned(), labels))
    }
}

impl<R: Recorder> Recorder for Bounded<R> {
    fn describe_counter(&self, key: KeyName, unit: Option<Unit>, description: SharedString) {
        self.inner.describe_counter(key, unit, description);
    }

    fn describe_gauge(&self, key: KeyName, unit: Option<Unit>, description: SharedString) {
        self.inner.describe_gauge(key, unit, description);
    }

    fn describe_histogram(&self, key: KeyName, unit: Option<Unit>, description: SharedString) {
        self.inner.describe_histogram(key, unit, description);
    }

    fn register_counter(&self, key: &Key, metadata: &Metadata<'_>) -> Counter {
        self.inner.register_counter(self.shared(key).as_ref().unwrap_or(key), metadata)
    }

    fn register_gauge(&self, key: &Key, metadata: &Metadata<'_>) -> Gauge {
        self.inner.register_gauge(self.shared(key).as_ref().unwrap_or(key), metadata)
    }

    fn register_histogram(&self, key: &Key, metadata: &Metadata<'_>) -> Histogram {
        self.inner.register_histogram(self.shared(key).as_ref().unwrap_or(key), metadata)
    }
}

#[cfg(test)]
mod tests {
    use metrics_exporter_prometheus::PrometheusBuilder;

    use super::*;

    #[test]
    fn names_beyond_the_bound_share_a_line_and_nothing_is_left_uncounted() {
        let inner = PrometheusBuilder::new().build_recorder();
        let handle = inner.handle();
        let bounded = Bounded::new(inner, 10);
        metrics::with_local_recorder(&bounded, || {
            for round in 0..2 {
                for number in 0..100_000 {
                    let labels = [("queue", "q".to_owned()), ("task", format!("t{number}"))];
                    let outcome =
                        ("outcome", if round == 0 { "failed" } else { "succeeded" }.to_owned());
                    let [queue, task] = labels;
                    metrics::counter!("ended_total", &[queue, task, outcome]).increment(1);
                }
            }
            metrics::counter!("plain_total").increment(1);
        });
        let page = handle.render();
        let lines: Vec<_> = page.lines().filter(|line| line.starts_with("ended_total{")).collect();
        assert_eq!(lines.len(), 2 * 11, "{page}");
        for outcome in ["failed", "succeeded"] {
            let shared = format!(
                "ended_total{{queue=\"(other)\",task=\"(other)\",outcome=\"{outcome}\"}} 99990"
            );
            assert!(lines.contains(&shared.as_str()), "{page}");
        }
        assert!(page.contains("plain_total 1"), "{page}");
    }
}
