//! Benchmark of computing which requests a workload sends and when. The load client computes this while it sends, so
//! the cost must be negligible beside that of sending.

use criterion::{Criterion, criterion_group, criterion_main};
use std::hint::black_box;
use std::path::Path;
use tiercel_workload::{Workload, arrivals, closed_request};

fn plan(criterion: &mut Criterion) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../workloads/cpu-overload-600.toml");
    let workload = Workload::load(&path).expect("a shipped workload is valid");
    criterion.bench_function("plan/cpu-overload-600", |bencher| {
        bencher.iter(|| {
            (0..workload.classes.len())
                .flat_map(|class| arrivals(black_box(&workload), class))
                .map(|planned| u64::from(planned.prompt_tokens))
                .sum::<u64>()
        });
    });
    criterion.bench_function("plan/closed-request", |bencher| {
        bencher.iter(|| closed_request(black_box(&workload), 0, 3, 17));
    });
}

criterion_group!(benches, plan);
criterion_main!(benches);
