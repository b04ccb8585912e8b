//! Time of every case of [`micro::cases`], as elements and as bytes in a second.
//!
//! `cargo bench -p underpass-micro -- enrich` runs those whose names hold `enrich`.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use micro::cases::ENTRIES;

fn cases(criterion: &mut Criterion) {
    for entry in ENTRIES {
        let mut case = (entry.build)();
        for _ in 0..2 {
            assert_eq!(case.work(), case.expected, "{}", entry.name);
        }
        let (group, name) = entry.name.split_once('/').unwrap_or(("", entry.name));
        let mut group = criterion.benchmark_group(group);
        group.throughput(Throughput::ElementsAndBytes {
            elements: case.expected.elements,
            bytes: case.fed_bytes,
        });
        group.bench_function(name, |bencher| bencher.iter(|| case.work()));
        group.finish();
    }
}

criterion_group!(benches, cases);
criterion_main!(benches);
