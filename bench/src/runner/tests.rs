//! The harness against stores whose behaviour is known, on a clock that only they move.

use std::time::Duration;

use super::*;
use crate::clock::FakeClock;
use crate::report::Exit;
use crate::store::fake::{Behaviour, FakeFactory, Outage};
use crate::workload::keys::KeyFormat;
use crate::workload::mix::{Mix, OpKind, Workload};
use crate::workload::{Distribution, WorkloadPlan};

const RECORDS: u64 = 200;

fn plan(workload: Workload, operations: u64) -> RunPlan {
    RunPlan {
        workload: WorkloadPlan {
            name: workload.name(),
            mix: workload.mix().unwrap(),
            distribution: workload.distribution(),
            records: RECORDS,
            operations,
            keys: KeyFormat::default(),
            seed: 7,
        },
        threads: 1,
        depth: 1,
        batch: 1,
        warmup: Length::NONE,
        length: Length::Operations(operations),
        target_ops_per_s: None,
        verify: Verify::Oracle,
        shape: Shape { fields: 10, field_bytes: 40 },
        update_mode: UpdateMode::Field,
        warm_index: false,
        raw_every: 0,
    }
}

fn load_plan() -> RunPlan {
    let run = plan(Workload::C, RECORDS);
    RunPlan {
        workload: WorkloadPlan {
            name: "load",
            mix: Mix::INSERTS,
            distribution: Distribution::Sequential,
            ..run.workload.clone()
        },
        ..run
    }
}

fn run_quietly<F: Factory>(factory: &F, plan: &RunPlan, clock: &FakeClock) -> RunResult {
    run(factory, plan, clock, &mut |_, _| ()).unwrap()
}

/// A fake with all records stored, that then behaves as told.
fn loaded(behaviour: Behaviour) -> (FakeFactory, FakeClock) {
    let clock = FakeClock::default();
    let quiet = FakeFactory::new(clock.clone(), Behaviour::default());
    let result = run_quietly(&quiet, &load_plan(), &clock);
    assert_eq!(result.tally.kind(OpKind::Insert).ok(), RECORDS);
    assert_eq!(quiet.keys() as u64, RECORDS);
    (quiet.with(behaviour), clock)
}

/// The ways to drive a store: one by one, in batches, pipelined.
fn ways(plan: &RunPlan) -> [RunPlan; 3] {
    [plan.clone(), RunPlan { batch: 8, ..plan.clone() }, RunPlan { depth: 8, ..plan.clone() }]
}

#[test]
fn bare_reads_are_timed_between_gets_and_no_part_of_the_run() {
    let (factory, clock) = loaded(Behaviour { service_ns: 700, ..Behaviour::default() });
    let plan = RunPlan { raw_every: 4, ..plan(Workload::C, 10_000) };
    let result = run_quietly(&factory, &plan, &clock);
    let raw = result.tally.raw_read.histogram();
    assert_eq!(raw.len(), 2_500);
    assert!(raw.value_at_quantile(0.5).abs_diff(500) <= 1);
    assert!((result.seconds - 10_000.0 * 700e-9).abs() < 1e-9, "{}", result.seconds);
    assert_eq!(result.tally.kind(OpKind::Read).count(), 10_000);
}

#[test]
fn a_service_time_of_700_ns_reads_as_700_ns() {
    let (factory, clock) = loaded(Behaviour { service_ns: 700, ..Behaviour::default() });
    let result = run_quietly(&factory, &plan(Workload::C, 10_000), &clock);
    let read = result.tally.kind(OpKind::Read).service.histogram();
    for quantile in [0.0, 0.5, 0.99, 1.0] {
        assert!(read.value_at_quantile(quantile).abs_diff(700) <= 1, "{quantile}");
    }
    assert!((read.mean() - 700.0).abs() < 1.0);
    assert!((result.seconds - 10_000.0 * 700e-9).abs() < 1e-9);
    assert!((result.throughput_ops_per_s() - 1e9 / 700.0).abs() < 1.0);
}

#[test]
fn a_stall_of_a_second_is_charged_to_all_who_should_have_started_meanwhile() {
    let stall = Behaviour {
        service_ns: 50_000,
        stall_at_ns: Some(5_000_000_000),
        stall_ns: 1_000_000_000,
        ..Behaviour::default()
    };
    for depth in [1, 4] {
        let (factory, clock) = loaded(stall);
        let plan = RunPlan {
            length: Length::Time(Duration::from_secs(10)),
            target_ops_per_s: Some(1000.0),
            depth,
            ..plan(Workload::C, 0)
        };
        let result = run_quietly(&factory, &plan, &clock);
        let read = result.tally.kind(OpKind::Read);
        assert!(read.count().abs_diff(10_000) <= depth as u64, "{}", read.count());
        let intended = read.intended.as_ref().unwrap().histogram();
        // 1000 of 10,000 operations should have started during the stall; they are late by 1000 ms down to nothing,
        // less what the backlog gains at 20 operations per ms. The hundredth of the latest is about 900 ms late.
        let p99_ms = intended.value_at_quantile(0.99) as f64 / 1e6;
        assert!((890.0..910.0).contains(&p99_ms), "depth {depth}: corrected p99 is {p99_ms} ms");
        let service_p99_us = read.service.histogram().value_at_quantile(0.99) as f64 / 1e3;
        assert!(service_p99_us < 1000.0, "depth {depth}: service p99 is {service_p99_us} us");
        assert!(read.service.histogram().max() >= 1_000_000_000);
    }
}

#[test]
fn no_operation_is_lost_when_shared_out() {
    for threads in [1, 2, 3, 7] {
        let (factory, clock) = loaded(Behaviour::default());
        let result = run_quietly(&factory, &RunPlan { threads, ..plan(Workload::A, 1003) }, &clock);
        assert_eq!(result.tally.operations(), 1003);
        assert_eq!((0..threads).map(|t| share(1003, t, threads)).sum::<u64>(), 1003);
    }
}

#[test]
fn every_workload_is_verified_in_every_way_with_threads() {
    for workload in [Workload::A, Workload::B, Workload::C, Workload::D, Workload::F] {
        for update_mode in [UpdateMode::Field, UpdateMode::Whole] {
            for plan in ways(&RunPlan { threads: 3, update_mode, ..plan(workload, 6000) }) {
                let (factory, clock) = loaded(Behaviour { service_ns: 10, ..Behaviour::default() });
                let tally = run_quietly(&factory, &plan, &clock).tally;
                let what = format!(
                    "{workload:?} {update_mode:?} {:?}: {:?}",
                    (plan.depth, plan.batch),
                    tally.examples
                );
                assert_eq!(tally.operations(), 6000, "{what}");
                assert_eq!((tally.wrong, tally.not_found(), tally.errors()), (0, 0, 0), "{what}");
                assert!(tally.verified >= tally.kind(OpKind::Read).count(), "{what}");
                let new = tally.kind(OpKind::Insert).count();
                assert_eq!(factory.keys() as u64, RECORDS + new, "inserts have gaps or duplicates: {what}");
                assert_eq!(new > 0, workload == Workload::D);
            }
        }
    }
}

#[test]
fn the_warm_up_is_not_counted() {
    let (factory, clock) = loaded(Behaviour { service_ns: 100, ..Behaviour::default() });
    for plan in ways(&RunPlan { warmup: Length::Operations(500), ..plan(Workload::A, 300) }) {
        let before = clock.begin();
        let result = run_quietly(&factory, &plan, &clock);
        assert_eq!(result.tally.operations(), 300);
        let passed_s = (clock.begin() - before) as f64 / 1e9;
        assert!(result.seconds < passed_s / 2.0, "{} of {passed_s}", result.seconds);
    }
}

#[test]
fn what_is_wrong_is_found_in_every_way() {
    let corrupt = Behaviour { corrupt_every: 100, ..Behaviour::default() };
    let stale = Behaviour { stale_every: 5, ..Behaviour::default() };
    let missing = Behaviour { miss_every: 100, ..Behaviour::default() };
    for plan in ways(&plan(Workload::A, 3000)) {
        let run = |behaviour| {
            let (factory, clock) = loaded(behaviour);
            run_quietly(&factory, &plan, &clock)
        };
        let result = run(corrupt);
        assert!(result.tally.wrong > 10, "corrupt: {}", result.tally.wrong);
        assert_eq!(Exit::of_result(&result), Exit::Wrong);
        assert!(
            result.tally.examples.iter().any(|text| text.contains("torn")),
            "{:?}",
            result.tally.examples
        );
        let result = run(stale);
        assert!(result.tally.wrong > 10, "stale: {}", result.tally.wrong);
        let result = run(missing);
        assert!(result.tally.not_found() > 10);
        assert_eq!(result.tally.operations(), 3000);
        assert_eq!(Exit::of_result(&result), Exit::Wrong);
    }
}

#[test]
fn a_stale_value_passes_without_the_oracle_and_a_corrupt_one_does_not() {
    let run = |behaviour| {
        let (factory, clock) = loaded(behaviour);
        let plan = RunPlan { verify: Verify::Bytes { oldest: 0 }, ..plan(Workload::A, 3000) };
        run_quietly(&factory, &plan, &clock).tally.wrong
    };
    assert_eq!(run(Behaviour { stale_every: 5, ..Behaviour::default() }), 0);
    assert!(run(Behaviour { corrupt_every: 100, ..Behaviour::default() }) > 0);
}

#[test]
fn failed_writes_are_errors_and_the_rest_stays_right() {
    for workload in [Workload::A, Workload::D, Workload::F] {
        for plan in ways(&RunPlan { threads: 2, ..plan(workload, 4000) }) {
            let (factory, clock) = loaded(Behaviour { fail_every: 10, ..Behaviour::default() });
            let result = run_quietly(&factory, &plan, &clock);
            let tally = &result.tally;
            assert_eq!((tally.wrong, tally.not_found()), (0, 0), "{workload:?}: {:?}", tally.examples);
            assert!(tally.errors() > 0);
            assert_eq!(tally.operations(), 4000);
            assert_eq!(Exit::of_result(&result), Exit::Refused);
        }
    }
}

#[test]
fn a_lost_connection_ends_the_run_at_once() {
    for plan in ways(&RunPlan { threads: 2, ..plan(Workload::B, 100_000) }) {
        let (factory, clock) = loaded(Behaviour { dies_after: 50, ..Behaviour::default() });
        let result = run_quietly(&factory, &plan, &clock);
        assert!(result.tally.operations() < 1000, "{}", result.tally.operations());
        assert_eq!(Exit::of_result(&result), Exit::NoConnection);
    }
}

const SECOND_NS: u64 = 1_000_000_000;

#[test]
fn a_server_that_stops_answering_ends_the_run() {
    for of_reads in [true, false] {
        for workload in [Workload::A, Workload::D, Workload::F] {
            for plan in ways(&RunPlan { threads: 2, ..plan(workload, 100_000) }) {
                let outage = Outage { after: 50, of_reads, refuses: false, takes_ns: SECOND_NS };
                let (factory, clock) = loaded(Behaviour { outage: Some(outage), ..Behaviour::default() });
                let result = run_quietly(&factory, &plan, &clock);
                let what = format!("{workload:?}, reads fail: {of_reads}, {:?}", (plan.depth, plan.batch));
                // Per thread three timeouts, each of up to 8 operations that wait together.
                assert!(result.tally.errors() <= 2 * 4 * 8, "{what}: {} errors", result.tally.errors());
                assert!(matches!(result.tally.fatal, Some(StoreError::NoAnswer(_))), "{what}");
                assert_eq!(Exit::of_result(&result), Exit::NoConnection, "{what}");
                assert_eq!(result.tally.wrong, 0, "{what}: {:?}", result.tally.examples);
            }
        }
    }
}

#[test]
fn refusals_end_the_run_after_many_or_after_long() {
    for (takes_ns, expected) in [(1000, 1000), (10 * SECOND_NS, 3), (SECOND_NS, 30), (40 * SECOND_NS, 1)] {
        let outage = Outage { after: 50, of_reads: true, refuses: true, takes_ns };
        let (factory, clock) = loaded(Behaviour { outage: Some(outage), ..Behaviour::default() });
        let result = run_quietly(&factory, &plan(Workload::C, 100_000), &clock);
        assert_eq!(result.tally.errors(), expected, "{takes_ns} ns each");
        assert!(matches!(result.tally.fatal, Some(StoreError::Refused(_))));
        assert_eq!(Exit::of_result(&result), Exit::Refused);
    }
}

#[test]
fn values_of_another_length_are_noticed_without_verifying() {
    let (factory, clock) = loaded(Behaviour::default());
    let other = Shape { fields: 1, field_bytes: 64 };
    let plan = RunPlan { shape: other, verify: Verify::Length, ..plan(Workload::C, 100) };
    assert_eq!(run_quietly(&factory, &plan, &clock).tally.wrong, 100);
}

#[test]
fn records_read_back_must_be_those_of_the_load() {
    let (factory, clock) = loaded(Behaviour::default());
    let again = run_quietly(&factory, &load_plan(), &clock);
    for threads in [1, 3] {
        let back = RunPlan { threads, ..crate::plan::read_back(&load_plan(), again.version_base) };
        let result = run_quietly(&factory, &back, &clock);
        assert_eq!((result.tally.verified, result.tally.wrong), (RECORDS, 0));
        let later = RunPlan { verify: Verify::Bytes { oldest: version_base() }, ..back };
        assert_eq!(run_quietly(&factory, &later, &clock).tally.wrong, RECORDS, "an older load's values");
    }
}

#[test]
fn updates_of_one_field_read_the_record_first() {
    let (factory, clock) = loaded(Behaviour { service_ns: 100, ..Behaviour::default() });
    for (update_mode, expected_ns) in [(UpdateMode::Field, 200), (UpdateMode::Whole, 100)] {
        let result = run_quietly(&factory, &RunPlan { update_mode, ..plan(Workload::A, 1000) }, &clock);
        assert_eq!(result.tally.kind(OpKind::Update).service.histogram().max(), expected_ns);
    }
    let result = run_quietly(&factory, &plan(Workload::F, 1000), &clock);
    let tally = &result.tally;
    assert_eq!(tally.kind(OpKind::Rmw).service.histogram().max(), 200);
    assert_eq!(tally.rmw_read.histogram().len(), tally.kind(OpKind::Rmw).ok());
    assert_eq!(tally.rmw_write.histogram().max(), 100);
}

#[test]
fn the_null_store_measures_the_harness() {
    let clock = crate::clock::SystemClock::start();
    for plan in ways(&RunPlan { threads: 2, ..plan(Workload::B, 10) }) {
        let ns = null_ns_per_op(&plan, &clock).unwrap();
        assert!(ns > 0.0 && ns.is_finite());
    }
}
