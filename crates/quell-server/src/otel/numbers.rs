//! The metrics page as metrics of OTLP: the same names, labels and values, so that both show one state.
//!
//! It reads the text that this server writes, and skips lines that it does not know.

use std::collections::BTreeMap;

use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, Gauge, Histogram, HistogramDataPoint, Metric, NumberDataPoint, Sum,
    metric, number_data_point,
};

use super::telemetry::text;

/// The labels of a line, in their order on the page.
type Labels = Vec<(String, String)>;

/// One metric of the page.
#[derive(Debug, Default)]
struct Family {
    name: String,
    kind: String,
    /// Its lines: the name, the labels, the value.
    lines: Vec<(String, Labels, String)>,
}

/// When the counters began, and when they were read.
#[derive(Clone, Copy)]
struct Times {
    began: u64,
    now: u64,
}

/// The metrics of a page; the times are in nanoseconds.
pub(super) fn metrics_of(page: &str, began: u64, now: u64) -> Vec<Metric> {
    let mut help = BTreeMap::new();
    let mut families: Vec<Family> = Vec::new();
    for line in page.lines() {
        if let Some((name, text)) = line.strip_prefix("# HELP ").and_then(|l| l.split_once(' ')) {
            help.insert(name.to_owned(), text.to_owned());
        } else if let Some((name, kind)) =
            line.strip_prefix("# TYPE ").and_then(|l| l.split_once(' '))
        {
            let (name, kind) = (name.to_owned(), kind.to_owned());
            families.push(Family { name, kind, lines: Vec::new() });
        } else if let Some((read, family)) = read(line).zip(families.last_mut()) {
            family.lines.push(read);
        }
    }
    let times = Times { began, now };
    let made = families.into_iter().map(|family| {
        let description = help.get(&family.name).cloned().unwrap_or_default();
        let unit = match () {
            () if family.name.ends_with("_seconds") => "s",
            () if family.name.ends_with("_bytes") => "By",
            () => "",
        };
        let (name, unit) = (family.name.clone(), unit.to_owned());
        Metric { name, description, unit, metadata: Vec::new(), data: data(family, times) }
    });
    made.filter(|metric| metric.data.is_some()).collect()
}

/// A line with a value.
fn read(line: &str) -> Option<(String, Labels, String)> {
    if line.starts_with('#') {
        return None;
    }
    let (series, value) = line.rsplit_once(' ')?;
    let Some((name, labels)) = series.split_once('{') else {
        return Some((series.to_owned(), Vec::new(), value.to_owned()));
    };
    Some((name.to_owned(), labels_of(labels.strip_suffix('}')?)?, value.to_owned()))
}

/// `a="b",c="d"`, where a backslash stands before `"`, a backslash, and the `n` of a new line.
fn labels_of(text: &str) -> Option<Labels> {
    let (mut labels, mut rest) = (Vec::new(), text);
    while !rest.is_empty() {
        let (name, after) = rest.split_once("=\"")?;
        let (mut value, mut end) = (String::new(), None);
        let mut chars = after.char_indices();
        while let Some((index, c)) = chars.next() {
            match c {
                '"' => {
                    end = Some(index);
                    break;
                }
                '\\' => value.push(match chars.next()?.1 {
                    'n' => '\n',
                    other => other,
                }),
                other => value.push(other),
            }
        }
        labels.push((name.to_owned(), value));
        let after = after.get(end?.saturating_add(1)..)?;
        rest = after.strip_prefix(',').unwrap_or(after);
    }
    Some(labels)
}

fn data(family: Family, times: Times) -> Option<metric::Data> {
    let aggregation_temporality = AggregationTemporality::Cumulative.into();
    match family.kind.as_str() {
        "counter" => {
            let value = |text: &str| text.parse().ok().map(number_data_point::Value::AsInt);
            let data_points = points(&family, times.began, times.now, value);
            Some(metric::Data::Sum(Sum {
                data_points,
                aggregation_temporality,
                is_monotonic: true,
            }))
        }
        "gauge" => {
            let value = |text: &str| text.parse().ok().map(number_data_point::Value::AsDouble);
            Some(metric::Data::Gauge(Gauge { data_points: points(&family, 0, times.now, value) }))
        }
        "histogram" => {
            let data_points = histograms(family, times);
            Some(metric::Data::Histogram(Histogram { data_points, aggregation_temporality }))
        }
        _ => None,
    }
}

fn points(
    family: &Family,
    start_time_unix_nano: u64,
    time_unix_nano: u64,
    value: impl Fn(&str) -> Option<number_data_point::Value>,
) -> Vec<NumberDataPoint> {
    let lines = family.lines.iter().filter(|(name, ..)| *name == family.name);
    let point = |(_, labels, text): &(String, Labels, String)| {
        let value = Some(value(text)?);
        let attributes = attributes(labels);
        Some(NumberDataPoint {
            attributes,
            start_time_unix_nano,
            time_unix_nano,
            value,
            ..Default::default()
        })
    };
    lines.filter_map(point).collect()
}

fn attributes(labels: &Labels) -> Vec<KeyValue> {
    labels.iter().map(|(name, value)| text(name, value)).collect()
}

/// The buckets of a page count all below their bound, those of OTLP what is between two.
fn histograms(family: Family, times: Times) -> Vec<HistogramDataPoint> {
    let mut points: BTreeMap<Labels, HistogramDataPoint> = BTreeMap::new();
    let mut below: BTreeMap<Labels, u64> = BTreeMap::new();
    for (name, mut labels, value) in family.lines {
        let bound = labels.iter().position(|(name, _)| name == "le");
        let bound = bound.map(|index| labels.remove(index).1);
        let point = points.entry(labels.clone()).or_insert_with(|| HistogramDataPoint {
            attributes: attributes(&labels),
            start_time_unix_nano: times.began,
            time_unix_nano: times.now,
            ..Default::default()
        });
        let what = name.strip_prefix(family.name.as_str()).unwrap_or_default();
        match (what, bound) {
            ("_sum", _) => point.sum = value.parse().ok(),
            ("_count", _) => point.count = value.parse().unwrap_or_default(),
            ("_bucket", Some(bound)) => {
                let all: u64 = value.parse().unwrap_or_default();
                let before = below.insert(labels, all).unwrap_or_default();
                point.bucket_counts.push(all.saturating_sub(before));
                point
                    .explicit_bounds
                    .extend(bound.parse().ok().filter(|bound: &f64| bound.is_finite()));
            }
            _ => {}
        }
    }
    points.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = r#"# HELP a_total All.
# TYPE a_total counter
a_total{queue="q",task="x\"y\\z"} 3
a_total 4

# TYPE b_seconds gauge
b_seconds 0.25
# HELP c_seconds How long.
# TYPE c_seconds histogram
c_seconds_bucket{task="t",le="0.1"} 1
c_seconds_bucket{task="t",le="1"} 3
c_seconds_bucket{task="t",le="+Inf"} 4
c_seconds_sum{task="t"} 7.5
c_seconds_count{task="t"} 4
"#;

    #[test]
    fn a_page_becomes_sums_gauges_and_histograms_with_the_same_values() {
        let metrics = metrics_of(PAGE, 1, 2);
        let [sum, gauge, histogram] = metrics.as_slice() else { panic!("{metrics:#?}") };
        let Some(metric::Data::Sum(counted)) = &sum.data else { panic!("{sum:#?}") };
        assert_eq!((&*sum.name, &*sum.description), ("a_total", "All."));
        assert!(counted.is_monotonic && counted.aggregation_temporality == 2);
        let [first, second] = counted.data_points.as_slice() else { panic!("{counted:#?}") };
        assert_eq!(first.value, Some(number_data_point::Value::AsInt(3)));
        assert_eq!(first.attributes, [text("queue", "q"), text("task", "x\"y\\z")]);
        assert_eq!((first.start_time_unix_nano, first.time_unix_nano), (1, 2));
        assert_eq!(second.value, Some(number_data_point::Value::AsInt(4)));
        let Some(metric::Data::Gauge(level)) = &gauge.data else { panic!("{gauge:#?}") };
        assert_eq!(gauge.unit, "s");
        assert_eq!(level.data_points[0].value, Some(number_data_point::Value::AsDouble(0.25)));
        let Some(metric::Data::Histogram(spread)) = &histogram.data else {
            panic!("{histogram:#?}")
        };
        let [point] = spread.data_points.as_slice() else { panic!("{spread:#?}") };
        assert_eq!((point.count, point.sum), (4, Some(7.5)));
        assert_eq!(point.explicit_bounds, [0.1, 1.0]);
        assert_eq!(point.bucket_counts, [1, 2, 1]);
        assert_eq!(point.attributes, [text("task", "t")]);
    }
}
