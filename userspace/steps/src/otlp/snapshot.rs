//! Metrics as OTLP has them: the same names, help texts and labels as `/metrics`, cumulative since the agent began.

use prometheus::proto::{self, MetricFamily, MetricType};
use prost::Message as _;

use super::messages::{
    CUMULATIVE, Data, Gauge, Histogram, HistogramDataPoint, KeyValue, Metric, NumberDataPoint, Sum,
};

/// The most points of one message of a metric, some 200 KiB: a metric of every rule and statement has more.
const MAX_POINTS: usize = 1_000;

/// Units by the ends of names, as Prometheus has them, in the code that OpenTelemetry uses (UCUM).
const UNITS: [(&str, &str); 3] = [("_seconds", "s"), ("_bytes", "By"), ("_ratio", "1")];

/// An encoded metric, or a part of its points.
pub(super) struct Part {
    pub(super) points: u64,
    pub(super) encoded: Vec<u8>,
}

/// Makes messages of metrics as they are `now_ns` after 1970, counted from `began_ns` on.
pub(super) fn of(families: &[MetricFamily], began_ns: u64, now_ns: u64) -> Vec<Part> {
    let times = Times { began_ns, now_ns };
    let parts = families.iter().flat_map(|family| {
        let points = family.get_metric().chunks(MAX_POINTS);
        points.filter_map(move |points| {
            let metric = Metric {
                name: family.name().to_owned(),
                description: family.help().to_owned(),
                unit: unit(family.name()).to_owned(),
                data: Some(data(family.get_field_type(), points, times)?),
            };
            Some(Part {
                points: points.len() as u64,
                encoded: metric.encode_to_vec(),
            })
        })
    });
    parts.collect()
}

#[derive(Clone, Copy)]
struct Times {
    began_ns: u64,
    now_ns: u64,
}

/// Makes a metric's points. None: the agent has no metric of this type.
fn data(of: MetricType, points: &[proto::Metric], times: Times) -> Option<Data> {
    let numbers = |began, value: fn(&proto::Metric) -> f64| {
        let number = |point: &proto::Metric| NumberDataPoint {
            start_time_unix_nano: began,
            time_unix_nano: times.now_ns,
            value: Some(value(point)),
            attributes: attributes(point),
        };
        points.iter().map(number).collect()
    };
    match of {
        MetricType::COUNTER => Some(Data::Sum(Sum {
            data_points: numbers(times.began_ns, |point| point.get_counter().get_value()),
            aggregation_temporality: CUMULATIVE,
            is_monotonic: true,
        })),
        // A value of now has no beginning.
        MetricType::GAUGE => Some(Data::Gauge(Gauge {
            data_points: numbers(0, |point| point.get_gauge().get_value()),
        })),
        MetricType::HISTOGRAM => Some(Data::Histogram(Histogram {
            data_points: points.iter().map(|point| histogram(point, times)).collect(),
            aggregation_temporality: CUMULATIVE,
        })),
        MetricType::SUMMARY | MetricType::UNTYPED => None,
    }
}

/// Makes a histogram's point. Prometheus counts in a bucket what is below its bound, OTLP what is between two bounds.
fn histogram(point: &proto::Metric, times: Times) -> HistogramDataPoint {
    let found = point.get_histogram();
    let count = found.get_sample_count();
    let finite = found
        .get_bucket()
        .iter()
        .filter(|bucket| bucket.upper_bound().is_finite());
    let (mut bucket_counts, mut explicit_bounds, mut below) = (Vec::new(), Vec::new(), 0);
    for bucket in finite {
        explicit_bounds.push(bucket.upper_bound());
        bucket_counts.push(bucket.cumulative_count().saturating_sub(below));
        below = bucket.cumulative_count();
    }
    bucket_counts.push(count.saturating_sub(below));
    HistogramDataPoint {
        start_time_unix_nano: times.began_ns,
        time_unix_nano: times.now_ns,
        count,
        sum: Some(found.get_sample_sum()),
        bucket_counts,
        explicit_bounds,
        attributes: attributes(point),
    }
}

fn attributes(point: &proto::Metric) -> Vec<KeyValue> {
    let labels = point.get_label().iter();
    labels
        .map(|label| KeyValue::text(label.name(), label.value()))
        .collect()
}

fn unit(name: &str) -> &'static str {
    let name = name.strip_suffix("_total").unwrap_or(name);
    let unit = UNITS.iter().find(|(end, _)| name.ends_with(end));
    unit.map_or("", |(_, unit)| unit)
}

#[cfg(test)]
mod tests {
    use prometheus::{Gauge, HistogramOpts, HistogramVec, IntCounterVec, Opts, Registry};

    use super::*;

    fn snapshot(registry: &Registry) -> Vec<Metric> {
        let parts = of(&registry.gather(), 5, 9);
        let decoded = parts.iter().map(|part| Metric::decode(&*part.encoded));
        decoded.map(Result::unwrap).collect()
    }

    #[test]
    fn a_counter_is_a_sum_and_a_gauge_a_gauge() {
        let registry = Registry::new();
        let counter = IntCounterVec::new(Opts::new("sent_bytes_total", "Bytes."), &["rule"]);
        let counter = counter.unwrap();
        counter.with_label_values(&["a"]).inc_by(7);
        counter.with_label_values(&["b"]);
        registry.register(Box::new(counter)).unwrap();
        let gauge = Gauge::new("flows", "Flows.").unwrap();
        gauge.set(0.5);
        registry.register(Box::new(gauge)).unwrap();
        let [flows, sent] = &snapshot(&registry)[..] else {
            panic!("two metrics");
        };
        assert_eq!(
            (&*sent.name, &*sent.description, &*sent.unit),
            ("sent_bytes_total", "Bytes.", "By")
        );
        let Some(Data::Sum(sum)) = &sent.data else {
            panic!("{sent:?}");
        };
        assert!(sum.is_monotonic && sum.aggregation_temporality == CUMULATIVE);
        let values: Vec<_> = sum.data_points.iter().map(|point| point.value).collect();
        assert_eq!(values, [Some(7.0), Some(0.0)]);
        let first = &sum.data_points[0];
        assert_eq!((first.start_time_unix_nano, first.time_unix_nano), (5, 9));
        assert_eq!(first.attributes, [KeyValue::text("rule", "a")]);
        let Some(Data::Gauge(gauge)) = &flows.data else {
            panic!("{flows:?}");
        };
        assert_eq!(gauge.data_points[0].value, Some(0.5));
    }

    #[test]
    fn buckets_have_what_is_between_their_bounds() {
        let registry = Registry::new();
        let options = HistogramOpts::new("took_seconds", "Time.").buckets(vec![1.0, 2.0, 4.0]);
        let histogram = HistogramVec::new(options, &[]).unwrap();
        for value in [0.5, 1.5, 1.5, 9.0] {
            histogram.with_label_values::<&str>(&[]).observe(value);
        }
        registry.register(Box::new(histogram)).unwrap();
        let metric = snapshot(&registry).pop().unwrap();
        assert_eq!(metric.unit, "s");
        let Some(Data::Histogram(histogram)) = &metric.data else {
            panic!("{metric:?}");
        };
        let point = &histogram.data_points[0];
        assert_eq!((point.count, point.sum), (4, Some(12.5)));
        assert_eq!(point.explicit_bounds, [1.0, 2.0, 4.0]);
        assert_eq!(point.bucket_counts, [1, 2, 0, 1]);
    }

    #[test]
    fn a_metric_of_many_points_is_several_messages() {
        let registry = Registry::new();
        let counter = IntCounterVec::new(Opts::new("c", "C."), &["n"]).unwrap();
        for n in 0..MAX_POINTS * 2 + 1 {
            counter.with_label_values(&[n.to_string()]).inc();
        }
        registry.register(Box::new(counter)).unwrap();
        let parts = of(&registry.gather(), 0, 0);
        let points: Vec<_> = parts.iter().map(|part| part.points).collect();
        assert_eq!(points, [1_000, 1_000, 1]);
    }
}
